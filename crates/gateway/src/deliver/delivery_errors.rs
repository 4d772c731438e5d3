//! Platform errors of requests for which an instance was chosen: not sent, sent without a response,
//! or late.

use http::StatusCode;
use nearpath_domain::CallError;
use nearpath_types::{PlatformError, Reason, duration, policy};

use super::outgoing_request;
use crate::COMPONENT;
use crate::call::GatewayCall;
use crate::function::FunctionEndpoint;

/// Returns the error for a call whose connection or body broke before the response. `error` is
/// hyper's, if the call went over HTTP.
pub(super) fn broken_call_error(
    call: &GatewayCall,
    endpoint: &FunctionEndpoint,
    error: Option<&hyper::Error>,
) -> PlatformError {
    // A fault in the caller's body is the cause: the gateway itself then aborts the request to the
    // instance.
    if body_fault(call).is_some() {
        return broken_body_error(call);
    }
    // Invalid HTTP points to a bug in the function, a closed connection to a crash. Operators need
    // to tell these apart.
    let is_invalid_http = error.is_some_and(hyper::Error::is_parse);
    let failure = if is_invalid_http {
        "answered with invalid HTTP"
    } else {
        "closed the connection before it answered"
    };
    let why = error.map(|error| format!(": {error}")).unwrap_or_default();
    let message = format!("{} of {} {failure}{why}", endpoint.id, call.function.name);
    PlatformError::new(COMPONENT, Reason::InstanceDied, message)
}

fn body_fault(call: &GatewayCall) -> Option<Reason> {
    call.upload_progress.as_ref()?.fault()
}

/// Returns the error for a body that broke off, was invalid, or exceeded the limit.
pub(super) fn broken_body_error(call: &GatewayCall) -> PlatformError {
    match body_fault(call) {
        Some(Reason::BodyTooLarge) => {
            outgoing_request::body_too_large_error(call.max_body().unwrap_or(u64::MAX))
        }
        Some(Reason::BadRequest) => PlatformError::new(
            COMPONENT,
            Reason::BadRequest,
            "the request's chunked body is not framed as RFC 9112 says",
        ),
        Some(Reason::NotImplemented) => PlatformError::new(
            COMPONENT,
            Reason::NotImplemented,
            "the request ended in trailers, which its path through shared memory does not carry: \
             announce them with the header `Trailer`",
        ),
        Some(Reason::Internal) => PlatformError::new(
            COMPONENT,
            Reason::Internal,
            "the part of the request's body that was on the disk could not be read; the server's log \
             has the cause",
        ),
        // Only `CallerGone` is left; see `CallerBodyError::refusal_reason`.
        _ => PlatformError::new(
            COMPONENT,
            Reason::CallerGone,
            "the caller closed the connection before its body was complete",
        ),
    }
}

/// Returns the error for a body that did not arrive within the limit behind `reason`.
pub(super) fn late_body_error(call: &GatewayCall, reason: Reason) -> PlatformError {
    let (message, setting) = match reason {
        Reason::SlowRequest => slow_body_text(),
        _ => (
            "the request's body had not arrived by the deadline",
            call.deadlines.deadline_setting(),
        ),
    };
    PlatformError::new(COMPONENT, reason, message).governed_by(setting)
}

fn slow_body_text() -> (&'static str, &'static str) {
    (
        "the request's body stopped arriving, came below the minimum rate, or too slowly for a \
         place that others wait for",
        "body idle timeout and minimum body rate",
    )
}

/// Returns the error for a response that is none: an informational status without a request for it.
pub(super) fn unfinal_response_error(
    call: &GatewayCall,
    endpoint: &FunctionEndpoint,
    status: StatusCode,
) -> PlatformError {
    let message = format!(
        "{} of {} answered with status {}, which ends no request (RFC 9110 section 15.2)",
        endpoint.id,
        call.function.name,
        status.as_u16()
    );
    PlatformError::new(COMPONENT, Reason::InstanceDied, message)
}

/// Returns the error for an expired limit. `reason` says which one: the upload, the first byte of
/// the response, or the whole call.
pub(crate) fn timeout_error(
    call: &GatewayCall,
    endpoint: &FunctionEndpoint,
    reason: Reason,
) -> PlatformError {
    let (name, limits, id) = (&call.function.name, &call.route.policy, &endpoint.id);
    let (message, setting) = match reason {
        Reason::SlowRequest => {
            let (message, setting) = slow_body_text();
            (message.to_owned(), setting)
        }
        Reason::FirstByteTimeout => {
            let limit = duration::format_duration(limits.first_byte_timeout);
            (
                format!("{id} of {name} did not begin to answer within {limit}"),
                policy::FIRST_BYTE_TIMEOUT,
            )
        }
        _ => (
            format!("{id} of {name} had not answered by the deadline"),
            call.deadlines.deadline_setting(),
        ),
    };
    PlatformError::new(COMPONENT, reason, message).governed_by(setting)
}

/// Returns the error for a call that did not run and cannot be sent again, because part of its body
/// was already sent and not kept.
pub(super) fn unsent_error(
    call: &GatewayCall,
    endpoint: &FunctionEndpoint,
    why: &str,
) -> PlatformError {
    let message = format!(
        "{} of {} was not called: {why}",
        endpoint.id, call.function.name
    );
    PlatformError::new(COMPONENT, Reason::ConnectFailed, message)
}

/// Returns the error for a call over shared memory that may have run, but whose response will not
/// come.
pub(crate) fn lost_response_error(
    call: &GatewayCall,
    endpoint: &FunctionEndpoint,
    error: CallError,
) -> PlatformError {
    let message = format!("{} of {}: {error}", endpoint.id, call.function.name);
    PlatformError::new(COMPONENT, Reason::InstanceDied, message)
}
