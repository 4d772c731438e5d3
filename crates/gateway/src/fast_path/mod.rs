//! Fast path: plain requests through shared memory, to the function's own port, or to another node
//! (ADR 19, ADR 89, ADR 106).
//!
//! The steps are those of the pipeline (route, admit, deliver, record), without what only other
//! requests need. The request head goes from the read buffer to the function, the response head
//! from the function to the caller, without a header map in between. If anything prevents the fast
//! path, nothing has happened yet, and the request takes the pipeline.

mod hop_headers;
mod http1_call;
mod plain_call;
mod request;
mod shm_call;

pub(crate) use http1_call::{CallLimit, Http1Call, Http1Draft, missing_content_type};
pub(crate) use plain_call::PlainCall;
pub use request::{
    ParseOutcome, PlainRequest, take_named_request, take_node_request, take_plain_request,
};
pub(crate) use shm_call::{SentCall, send_plain, uses_shared_memory};
