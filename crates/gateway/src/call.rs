//! One request for a function, with the state that every step of its path needs.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use http::Request;

use crate::context::WorkerContext;
use crate::function::{Function, Route};
use crate::record::Completion;
use crate::request::{Asked, Clock, Flow, Peer, Upload};

/// One request for a function, from its head to the last byte of its response.
///
/// It is made once, on the heap, and not moved again, so that the futures of the steps stay small.
pub(crate) struct Call {
    pub lane: Rc<WorkerContext>,
    pub peer: Rc<Peer>,
    pub function: Arc<Function>,
    /// What the snapshot said that let it in.
    pub route: Arc<Route>,
    pub asked: Asked,
    pub clock: Clock,
    pub record: Completion,
    /// When it was let in.
    pub admitted: Instant,
    /// What is to be sent; `None` while and after it is.
    pub request: Option<Request<Upload>>,
    /// How far its body is; `None`: it has none.
    pub flow: Option<Rc<Flow>>,
    /// Where the function's own path begins in the request's.
    pub rest: usize,
}
