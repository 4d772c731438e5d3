//! Outcome of sending a request to one instance.

use http::Response;

use super::instance_body::InstanceBody;
use crate::transport::HttpConnection;

/// Outcome of sending a request to one instance.
pub(crate) enum AttemptOutcome {
    /// Head of a response, and its connection; none through shared memory.
    Answered(Response<InstanceBody>, Option<HttpConnection>),
    /// Nothing was sent, and the cause; the request is back in the call.
    Unsent(String),
    /// The instance did not run the request because it is full or stopping; the request is back
    /// in the call.
    Refused(String),
}
