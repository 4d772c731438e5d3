//! Messages between processes of one machine through shared memory: the path `shm`. `contract/memory.md` is the layout.
//!
//! A [`pool`] holds the slots of one security domain. A [`Member`] is one thread that sends and receives there: it claims a
//! slot as a [`Lease`], fills it with a [`Draft`], or a [`Parcel`] when the body comes first, and sends it over the [`End`] of a [`channel`]; only a 16-byte
//! [`Descriptor`] moves, and the lease word of the slot says at every moment who may touch it. A [`Desk`] is where a member
//! sleeps and is woken. In a strict domain every member has a pool of its own that others can only read ([`Foreign`]), and what
//! comes is copied before it is looked at. The node makes all of it and, when a process has died, gives its slots back ([`reclaim`]).
//!
//! Three layers, so that each can be tested by its own means. Pure: [`word`], [`descriptor`], [`geometry`], [`envelope`],
//! [`head`], [`spin`]. Shared words without the bytes behind them, model-checked with `make loom`: [`leases`], [`ring`],
//! [`bell`]. The rest maps memory and asks the kernel. All pointers to shared memory are made in [`region`].
//!
//! Nobody here trusts what another process can write: it is copied, checked, and only the copy is used.
#![cfg(target_os = "linux")]
#![allow(unsafe_code)]
#![deny(unsafe_op_in_unsafe_fn)]

pub mod bell;
#[cfg(not(loom))]
pub mod channel;
#[cfg(not(loom))]
pub mod copies;
#[cfg(not(loom))]
pub mod counters;
pub mod descriptor;
#[cfg(not(loom))]
pub mod desk;
pub mod envelope;
#[cfg(not(loom))]
pub mod foreign;
pub mod geometry;
pub use nearpath_types::head;
#[cfg(not(loom))]
pub mod lease;
pub mod leases;
#[cfg(not(loom))]
mod ledger;
#[cfg(not(loom))]
pub mod member;
#[cfg(not(loom))]
pub mod message;
#[cfg(not(loom))]
pub mod parcel;
#[cfg(not(loom))]
pub mod payload;
#[cfg(not(loom))]
pub mod pool;
#[cfg(not(loom))]
pub mod reclaim;
#[cfg(not(loom))]
pub mod region;
pub mod ring;
pub mod shared;
pub mod spin;
pub mod sync;
#[cfg(not(loom))]
pub mod wire;
pub mod word;

#[cfg(not(loom))]
pub use channel::{Channel, End, Side};
pub use descriptor::{Descriptor, Slot};
#[cfg(not(loom))]
pub use desk::{Desk, Knocker};
pub use envelope::{Envelope, Kind};
#[cfg(not(loom))]
pub use foreign::Foreign;
pub use geometry::Geometry;
#[cfg(not(loom))]
pub use lease::Lease;
#[cfg(not(loom))]
pub use member::Member;
#[cfg(not(loom))]
pub use message::{Draft, Message, Outgoing};
#[cfg(not(loom))]
pub use parcel::Parcel;
#[cfg(not(loom))]
pub use payload::Payload;
#[cfg(not(loom))]
pub use pool::Pool;
#[cfg(not(loom))]
pub use region::Region;
#[cfg(not(loom))]
pub use wire::{Record, Wire};
pub use word::Party;
