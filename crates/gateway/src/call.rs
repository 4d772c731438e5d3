//! A request for a function, with the state that every step of its path needs.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use http::{HeaderValue, Request};
use nearpath_types::topic::MAX_REMOTE_EVENT_BYTES;
use nearpath_types::{FunctionPolicy, SourceNetwork};

use crate::context::{TransferGuard, WorkerContext};
use crate::function::{ActiveRoute, FunctionEntry};
use crate::record::CompletionRecord;
use crate::request::{PeerInfo, RequestDeadlines, RequestOptions, RequestUpload, UploadProgress};

/// Holds a request for a function, from its head to the last byte of its response.
///
/// Boxed once and not moved again, so that the futures of the steps stay small.
pub(crate) struct GatewayCall {
    pub worker: Rc<WorkerContext>,
    pub peer: Rc<PeerInfo>,
    /// Network of the client outside, or address of the calling instance: requests of one share a
    /// function's places.
    pub source: SourceNetwork,
    pub function: Arc<FunctionEntry>,
    /// The calling function; `None` for callers outside.
    pub caller: Option<Arc<FunctionEntry>>,
    /// Topic of an event, whose publisher is the caller; `None` for a call.
    pub topic: Option<HeaderValue>,
    /// Entry of the snapshot under which the call was admitted.
    pub route: Arc<ActiveRoute>,
    pub options: RequestOptions,
    pub deadlines: RequestDeadlines,
    pub record: CompletionRecord,
    /// Time of admission.
    pub admitted_at: Instant,
    /// Request to send; `None` during and after sending.
    pub request: Option<Request<RequestUpload>>,
    /// Progress of the request body; `None` without a body.
    pub upload_progress: Option<Rc<UploadProgress>>,
    /// Presence in the sweep while the request is admitted, its body arrives, and its response has
    /// not begun.
    pub upload_guard: Option<TransferGuard>,
    /// Offset of the function's own path in the path of the request.
    pub path_offset: usize,
}

impl GatewayCall {
    /// Returns the maximum length of the request's body in bytes; `None`: no limit.
    pub(crate) fn max_body(&self) -> Option<u64> {
        max_body(&self.route.policy, self.topic.is_some())
    }
}

/// Returns the maximum length of a body in bytes; `None`: no limit. Events have one of their own.
pub(crate) fn max_body(policy: &FunctionPolicy, is_event: bool) -> Option<u64> {
    let of_events = is_event.then_some(MAX_REMOTE_EVENT_BYTES as u64);
    // `None` is below every number, so the smaller one of two is not `min`.
    policy.max_body.into_iter().chain(of_events).min()
}
