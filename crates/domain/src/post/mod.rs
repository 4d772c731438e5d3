//! A party: it joins, learns its peers, calls and is called.
//!
//! One core for two drivers. [`blocking`] is a thread that sleeps at its desk: whoever waits receives, also for others, so a
//! handler may call while it is being called, and no helper thread is needed. [`polled`] lives in a tokio event loop. The
//! core sends what it can at once; what has no room waits in the peer's outbox and goes when the ring or the pool has room.
//!
//! A call comes to exactly one outcome: an answer, or a [`CallError`] that says whether the peer can have seen it.

pub mod blocking;
mod core;
mod flow;
mod inbox;
mod join;
mod link;
mod outbox;
mod payload;
mod peers;
#[cfg(feature = "tokio")]
pub mod polled;
mod rest;
mod words;

pub use crate::book::To;
pub use join::{JoinError, Place, Settings};
pub use payload::{Draft, Payload};
pub use rest::Rest;
pub use words::{
    Answer, CallError, Caller, Fields, Incoming, NotWanted, OwnedField, Published, Reply, Request, Unsent,
};
