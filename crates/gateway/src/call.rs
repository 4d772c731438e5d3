//! One request for a function, with the state that every step of its path needs.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use http::Request;

use crate::context::WorkerContext;
use crate::function::{ActiveRoute, FunctionEntry};
use crate::record::CompletionRecord;
use crate::request::{PeerInfo, RequestDeadlines, RequestOptions, RequestUpload, UploadProgress};

/// One request for a function, from its head to the last byte of its response.
///
/// It is made once, on the heap, and not moved again, so that the futures of the steps stay small.
pub(crate) struct GatewayCall {
    pub worker: Rc<WorkerContext>,
    pub peer: Rc<PeerInfo>,
    pub function: Arc<FunctionEntry>,
    /// What the snapshot said that let it in.
    pub route: Arc<ActiveRoute>,
    pub options: RequestOptions,
    pub deadlines: RequestDeadlines,
    pub record: CompletionRecord,
    /// When it was let in.
    pub admitted_at: Instant,
    /// What is to be sent; `NoConnection` while and after it is.
    pub request: Option<Request<RequestUpload>>,
    /// How far its body is; `NoConnection`: it has none.
    pub upload_progress: Option<Rc<UploadProgress>>,
    /// Where the function's own path begins in the request's.
    pub path_offset: usize,
}
