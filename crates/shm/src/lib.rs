//! Messages between processes of one machine through shared memory: the path `shm`. `contract/memory.md` is the layout.
//!
//! A [`pool`] holds the slots of one security domain. A [`PoolEndpoint`] is one thread that sends and receives there: it claims a
//! slot as a [`ConnectionLease`], fills it with a [`MessageDraft`], or a [`OwnedSlot`] when the body comes first, and sends it over the [`ChannelEnd`] of a [`channel`]; only a 16-byte
//! [`Descriptor`] moves, and the lease word of the slot says at every moment who may touch it. A [`WakeupCell`] is where a member
//! sleeps and is woken. In a strict domain every member has a pool of its own that others can only read ([`PeerPool`]), and what
//! comes is copied before it is looked at. The node makes all of it and, when a process has died, gives its slots back ([`reclaim`]).
//!
//! Three layers, so that each can be tested by its own means. Pure: [`lease_word`], [`descriptor`], [`geometry`], [`envelope`],
//! [`head`], [`spin`]. Shared words without the bytes behind them, model-checked with `make loom`: [`lease_table`], [`ring`],
//! [`sleep_wake`]. The rest maps memory and asks the kernel. All pointers to shared memory are made in [`region`].
//!
//! Nobody here trusts what another process can write: it is copied, checked, and only the copy is used.
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
