//! Context that an adapter gets with each client connection.

use std::rc::Rc;

use nearpath_connpool::upstream::UpstreamHandle;
use tokio::sync::watch;

use crate::client_instance::ClientInstance;
use crate::failed_writes::FailedWrites;

/// A connection of a function to a destination whose protocol an adapter understands.
#[derive(Clone)]
pub struct ClientContext {
    /// The instance that connected.
    pub caller: Rc<ClientInstance>,
    /// Source of connections to the destination.
    pub upstream: UpstreamHandle,
    /// Failures of writes that were acknowledged before the server executed them.
    pub failed_writes: Rc<FailedWrites>,
    /// Closes when the client's instance has ended. `None`: the caller drops the adapter's future
    /// instead.
    pub instance_alive: Option<watch::Receiver<()>>,
}
