//! Protocols whose used connections can be proved quiet, so that they serve the next client.
//!
//! An adapter is a function `serve(client, visit)`, one future a client: it reads what the client says, has a backend do it, and gives the backend back
//! only when the protocol itself has shown that nothing of this client is left in it. What it cannot prove it closes. The client comes with `TCP_NODELAY`: its
//! listener had it.

pub mod bench;
pub mod forecast;
pub mod http;
pub mod larder;
pub mod mysql;
pub mod postgres;
pub mod pump;
pub mod redis;
mod rooms;
pub mod socket;

use std::rc::Rc;

use tokio::sync::watch;

use crate::destination::{Caller, Destination};
use crate::keeper::Backends;
use crate::ledger::Ledger;
use crate::unwritten::Unwritten;

pub use rooms::{Idlers, Room, Rooms};

/// One connection of a function to a destination whose protocol is understood.
#[derive(Clone)]
pub struct Visit {
    /// Who came.
    pub caller: Rc<Caller>,
    /// Where it wants to go.
    pub destination: Rc<Destination>,
    /// Opens connections to it.
    pub backends: Rc<dyn Backends>,
    /// What adapters keep from one client to the next.
    pub rooms: Rc<Rooms>,
    /// What is written down of it.
    pub ledger: Rc<Ledger>,
    /// Where failures of writes are left that were answered before they were done.
    pub unwritten: Rc<Unwritten>,
    /// Fails when the client's instance has ended; `None`: then this visit is ended from outside.
    pub here: Option<watch::Receiver<()>>,
}
