//! What an adapter knows of the client that it serves.

use std::rc::Rc;

use nearpath_connpool::upstream::UpstreamHandle;
use nearpath_types::{FunctionId, InstanceId};
use tokio::sync::watch;

use crate::failed_writes::FailedWrites;

/// The instance that a client runs in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientInstance {
    /// Its id.
    pub instance: InstanceId,
    /// The function whose instance it is.
    pub function: FunctionId,
}

/// One connection of a function to a destination whose protocol is understood.
#[derive(Clone)]
pub struct ClientContext {
    /// Who came.
    pub caller: Rc<ClientInstance>,
    /// Where it wants to go, and how connections to there are had.
    pub upstream: UpstreamHandle,
    /// Where failures of writes are left that were answered before they were done.
    pub failed_writes: Rc<FailedWrites>,
    /// Fails when the client's instance has ended; `NoConnection`: then this visit is ended from outside.
    pub instance_alive: Option<watch::Receiver<()>>,
}
