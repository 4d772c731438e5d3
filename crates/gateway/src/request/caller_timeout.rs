//! Timeouts that callers set for their own requests.

use std::time::Duration;

use http::Request;
use nearpath_types::{PlatformError, Reason, duration};
use nearpath_wire::hop::grpc;
use nearpath_wire::hop::timeout::X_TIMEOUT;

use crate::COMPONENT;

/// Parses `X-Timeout` or `grpc-timeout`.
///
/// # Errors
/// `bad_request` if the value is no duration.
pub fn parse_caller_timeout<B>(request: &Request<B>) -> Result<Option<Duration>, PlatformError> {
    let text = |name| {
        request
            .headers()
            .get(name)
            .map(|value| value.to_str().unwrap_or("not ASCII"))
    };
    let (name, parsed) = match (text(X_TIMEOUT), text(grpc::GRPC_TIMEOUT)) {
        // gRPC libraries send their own deadline by default, so an explicit `X-Timeout` wins.
        (Some(text), _) => (
            "X-Timeout",
            duration::parse_duration(text).map_err(|error| error.to_string()),
        ),
        (None, Some(text)) => (
            "grpc-timeout",
            grpc::parse_timeout(text).ok_or(format!("{text:?} is no gRPC timeout")),
        ),
        (None, None) => return Ok(None),
    };
    parsed.map(Some).map_err(|why| {
        PlatformError::new(COMPONENT, Reason::BadRequest, format!("{name}: {why}"))
            .governed_by(name)
    })
}
