//! One request for a function, and what every room on its way needs to know of it.

mod arriving;
mod asked;
mod clock;
mod digits;
pub(crate) mod grpc;
mod identity;
mod upload;

use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use http::Request;
use http::header::HeaderValue;

pub(crate) use arriving::Arriving;
pub use asked::Asked;
pub(crate) use asked::{X_CALL_ID, X_NEARPATH_PATH, X_START_TIME, X_TIMEOUT, is_stream};
pub(crate) use clock::{Clock, Stage};
pub(crate) use digits::seconds;
pub(crate) use identity::{CallId, StartTime};
pub(crate) use upload::{Flow, Upload};

use crate::Zone;
use crate::lane::Lane;
use crate::record::Completion;
use crate::route::{Function, Route};

/// Who is at the other end of a connection.
#[derive(Debug)]
pub(crate) struct Peer {
    /// Whether it comes from outside or from an instance.
    pub zone: Zone,
    /// Its address; inside, that is its identity.
    pub addr: IpAddr,
    /// The same, for `X-Forwarded-For`.
    pub forwarded_for: HeaderValue,
    /// `http` or `https`, for `X-Forwarded-Proto`.
    pub proto: HeaderValue,
}

/// One request for a function, from its head to the last byte of its answer. It is made once and not moved again: what
/// each room needs to know is here, so that the walk's own state stays small.
pub(crate) struct Call {
    pub lane: Rc<Lane>,
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
