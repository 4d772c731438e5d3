//! The outcome of sending a request to one instance.

use http::Response;

use super::instance_body::InstanceBody;
use crate::transport::HttpConnection;

/// The outcome of sending a request to one instance.
pub(crate) enum AttemptOutcome {
    /// The head of an answer, on this connection; none through memory.
    Answered(Response<InstanceBody>, Option<HttpConnection>),
    /// Not a byte was sent, and why; the request is back in the call.
    Unsent(String),
    /// The instance says that it did not run the request, being full or about to stop; the request is back in the call.
    Refused(String),
}
