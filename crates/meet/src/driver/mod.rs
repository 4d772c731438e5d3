//! Sockets under the punching machine: what it wants done is done, what happens is told to it.
//!
//! [`Ports`] are bound first, and stay: what the rendezvous sees of a port holds for whatever leaves from it. A [`Driver`]
//! runs the agent of one session on them until both sides have a direct connection, or the relay it is. Connections come
//! out of it as arrivals of a [`crate::way::Way`].
//!
//! One task holds it all: it asks the sockets for one event at a time, so that nothing is read of a connection which the
//! machine has just given away.

mod addresses;
mod datagrams;
mod observe;
mod ports;
mod rim;
mod run;
mod search;
mod settings;
mod streams;
mod verdict;

pub use observe::{Ask, Observers};
pub use ports::Ports;
pub use run::{Driver, Introduction, Line};
pub use search::Search;
pub(crate) use search::Searching;
pub use settings::{Relaying, Settings};
pub use verdict::{Verdict, Why};
