//! Parties of a security domain: joining, peers, calls by name. `contract/dispatch.md` is the protocol, [`nearpath_shm`] the
//! memory underneath.
//!
//! A process becomes a party with a [`post`]: it says hello on its socket, gets the pool and its desk, learns its peers, and
//! then calls functions by name and takes calls. The node's side is the [`hub`]: it decides with the pure [`registrar`] who
//! gets a channel to whom, and gives the slots of the dead back. What one party knows of its peers and open calls is the
//! pure [`book`]; [`protocol`] and [`packet`] are what travels on the sockets.
#![forbid(unsafe_code)]
#![cfg(target_os = "linux")]

pub mod assembly;
pub mod book;
pub mod clock;
#[cfg(feature = "tokio")]
pub mod hub;
pub mod inflow;
pub mod outflow;
pub mod packet;
pub mod post;
pub mod protocol;
pub mod registrar;
pub mod trace;

#[cfg(feature = "tokio")]
pub use hub::Hub;
pub use nearpath_shm::Party;
pub use post::{Answer, CallError, Incoming, Reply, Request, To, Unsent};
