//! A destination with everything that a client of it needs.

use std::rc::Rc;

use crate::adapter_state::AdapterRegistry;
use crate::counters::DestinationCounters;
use crate::destination::EgressDestination;
use crate::pool::ConnectionSource;

/// A destination, and the connections of one function to it.
#[derive(Clone)]
pub struct UpstreamHandle {
    /// The destination.
    pub destination: Rc<EgressDestination>,
    /// Source of new connections to it.
    pub source: Rc<dyn ConnectionSource>,
    /// State that adapters share between clients.
    pub adapters: Rc<AdapterRegistry>,
    /// Counters of this destination.
    pub counters: Rc<DestinationCounters>,
}
