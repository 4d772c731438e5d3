//! The platform's errors for requests that were sent, or could not be.

use nearpath_domain::CallError;
use nearpath_types::{PlatformError, Reason, duration, policy};

use super::outgoing_request;
use crate::COMPONENT;
use crate::call::Call;
use crate::function::Endpoint;

pub(super) fn broken(call: &Call, endpoint: &Endpoint, error: Option<&hyper::Error>) -> PlatformError {
    match call.flow.as_ref().and_then(|flow| flow.fault()) {
        Some(Reason::BodyTooLarge) => outgoing_request::too_large(call.route.policy.max_body.unwrap_or(u64::MAX)),
        Some(Reason::BadRequest) => PlatformError::new(
            COMPONENT,
            Reason::BadRequest,
            "the request's chunked body is not framed as RFC 9112 says",
        ),
        Some(reason) => PlatformError::new(COMPONENT, reason, "the caller went away before its body was complete"),
        None => {
            let invalid = error.is_some_and(hyper::Error::is_parse);
            let what = if invalid { "answered with invalid HTTP" } else { "broke off before it had answered" };
            let why = error.map(|error| format!(": {error}")).unwrap_or_default();
            let message = format!("instance {} of {} {what}{why}", endpoint.id, call.function.name);
            PlatformError::new(COMPONENT, Reason::InstanceDied, message)
        }
    }
}

pub(crate) fn too_late(call: &Call, endpoint: &Endpoint, reason: Reason) -> PlatformError {
    let (name, limits, id) = (&call.function.name, &call.route.policy, endpoint.id);
    let (message, setting) = match reason {
        Reason::SlowRequest => ("the request's body stopped arriving".to_owned(), "body idle timeout"),
        Reason::FirstByteTimeout => {
            let limit = duration::format(limits.first_byte_timeout);
            (format!("instance {id} of {name} did not begin to answer within {limit}"), policy::FIRST_BYTE_TIMEOUT)
        }
        _ => (format!("instance {id} of {name} had not answered when the deadline passed"), call.clock.total_setting()),
    };
    PlatformError::new(COMPONENT, reason, message).governed_by(setting)
}

/// It has not run, but nobody can send it again: part of its body is gone.
pub(super) fn not_called(call: &Call, endpoint: &Endpoint, why: &str) -> PlatformError {
    let message = format!("instance {} of {} was not called: {why}", endpoint.id, call.function.name);
    PlatformError::new(COMPONENT, Reason::ConnectFailed, message)
}

pub(crate) fn lost_reply(call: &Call, endpoint: &Endpoint, error: CallError) -> PlatformError {
    let message = format!("instance {} of {}: {error}", endpoint.id, call.function.name);
    PlatformError::new(COMPONENT, Reason::InstanceDied, message)
}
