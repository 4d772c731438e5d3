//! What an adapter knows of the client that it serves.

use std::rc::Rc;

use nearpath_connpool::upstream::Upstream;
use nearpath_types::{FunctionId, InstanceId};
use tokio::sync::watch;

use crate::failed_writes::Unwritten;

/// The instance that a client runs in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// Its id.
    pub instance: InstanceId,
    /// The function whose instance it is.
    pub function: FunctionId,
}

/// One connection of a function to a destination whose protocol is understood.
#[derive(Clone)]
pub struct Visit {
    /// Who came.
    pub caller: Rc<Caller>,
    /// Where it wants to go, and how connections to there are had.
    pub upstream: Upstream,
    /// Where failures of writes are left that were answered before they were done.
    pub unwritten: Rc<Unwritten>,
    /// Fails when the client's instance has ended; `None`: then this visit is ended from outside.
    pub here: Option<watch::Receiver<()>>,
}
