//! One destination with all that a client of it needs.

use std::rc::Rc;

use crate::adapter_state::Rooms;
use crate::counters::Ledger;
use crate::destination::Destination;
use crate::pool::Backends;

/// A destination, and how one function gets connections to it.
#[derive(Clone)]
pub struct Upstream {
    /// The destination.
    pub destination: Rc<Destination>,
    /// Opens connections to it.
    pub backends: Rc<dyn Backends>,
    /// State that adapters share between clients.
    pub rooms: Rc<Rooms>,
    /// Counters of this destination.
    pub ledger: Rc<Ledger>,
}
