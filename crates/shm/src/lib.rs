//! Messages between processes of one machine through shared memory: the path `shm`.
//! `contract/memory.md` is the layout.
//!
//! A [`pool`] holds the slots of one security domain. A [`PoolEndpoint`] is one thread that sends
//! and receives there. It claims a slot as a [`Lease`] and fills it with a [`MessageDraft`], or an
//! [`OwnedSlot`] when the body comes first. It sends the message over the [`ChannelEnd`] of a
//! [`channel`]. Only a 16-byte [`Descriptor`] moves. The lease word of the slot decides at every
//! moment which endpoint may touch it. An endpoint sleeps and is woken at its [`WakeupCell`].
//!
//! In a strict domain every endpoint has a pool of its own that others can only read
//! ([`PeerPool`]). Receivers copy a message before they read it. The node creates all regions and
//! reclaims the slots of a dead process ([`reclaim`]).
//!
//! The crate has three layers, each with its own kind of tests. Pure: [`lease_word`],
//! [`descriptor`], [`geometry`], [`envelope`], [`head`], [`spin`]. Shared words without the bytes
//! behind them, model-checked with `make loom`: [`lease_table`], [`ring`], [`sleep_wake`]. The rest
//! maps memory and calls the kernel. All pointers to shared memory are made in [`region`].
//!
//! Memory that another process can write is never trusted: it is copied and checked, and only the
//! copy is used.
#![cfg(target_os = "linux")]
#![allow(unsafe_code)]
#![deny(unsafe_op_in_unsafe_fn)]

#[cfg(not(loom))]
pub mod channel;
#[cfg(not(loom))]
pub mod copies;
#[cfg(not(loom))]
pub mod counters;
pub mod descriptor;
pub mod envelope;
pub mod geometry;
#[cfg(not(loom))]
pub mod peer_pool;
pub mod sleep_wake;
#[cfg(not(loom))]
pub mod wakeup_cell;
pub use nearpath_types::head;
#[cfg(not(loom))]
pub mod endpoint;
#[cfg(not(loom))]
pub mod lease;
pub mod lease_table;
pub mod lease_word;
#[cfg(not(loom))]
pub mod message;
#[cfg(not(loom))]
pub mod owned_slot;
#[cfg(not(loom))]
pub mod payload;
#[cfg(not(loom))]
pub mod pool;
#[cfg(not(loom))]
pub mod reclaim;
#[cfg(not(loom))]
pub mod region;
pub mod ring;
#[cfg(not(loom))]
mod sent_slots;
pub mod shared;
#[cfg(not(loom))]
pub mod sockmap;
pub mod spin;
pub mod sync;

#[cfg(not(loom))]
pub use channel::{Channel, ChannelEnd, ChannelSide};
pub use descriptor::{Descriptor, SlotId};
#[cfg(not(loom))]
pub use endpoint::PoolEndpoint;
pub use envelope::{Envelope, MessageKind};
pub use geometry::PoolGeometry;
#[cfg(not(loom))]
pub use lease::Lease;
pub use lease_word::EndpointId;
#[cfg(not(loom))]
pub use message::{MessageDraft, OutgoingMessage, ReceivedMessage};
#[cfg(not(loom))]
pub use owned_slot::OwnedSlot;
#[cfg(not(loom))]
pub use payload::MessagePayload;
#[cfg(not(loom))]
pub use peer_pool::PeerPool;
#[cfg(not(loom))]
pub use pool::SlotPool;
#[cfg(not(loom))]
pub use region::Region;
#[cfg(not(loom))]
pub use sockmap::{SockmapRecord, SockmapSocket};
#[cfg(not(loom))]
pub use wakeup_cell::{WakeupCell, WakeupSignal};
