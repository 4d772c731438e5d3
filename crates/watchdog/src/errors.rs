//! Responses that the watchdog itself makes when a call fails: the status, header fields with
//! origin and reason, and a text.

use std::borrow::Cow;

use http::header::{ALLOW, CONTENT_TYPE, HeaderName, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};
use nearpath_types::reason::FUNCTION_METHODS;
use nearpath_types::{PlatformError, Reason};

use crate::response_body::WatchdogBody;
use nearpath_wire::hop::grpc::set_trailers_only;

/// OpenFaaS's header field for a response that the tenant's code did not make: the value names its
/// origin. OpenFaaS's queue worker repeats such calls.
pub(crate) const X_OPENFAAS_INTERNAL: HeaderName = HeaderName::from_static("x-openfaas-internal");
/// nearpath's header field with the name of the [`Reason`].
pub(crate) const X_NEARPATH_REASON: HeaderName = HeaderName::from_static("x-nearpath-reason");

/// Creates an error of this component.
pub(crate) fn watchdog_error(
    reason: Reason,
    message: impl Into<Cow<'static, str>>,
) -> PlatformError {
    PlatformError::new("watchdog", reason, message)
}

/// Returns the response for an error. The watchdog's later steps read the reason from its
/// extensions, because the tenant's code can set header fields, but no extensions.
pub(crate) fn error_response(error: &PlatformError) -> Response<WatchdogBody> {
    let mut response = Response::new(WatchdogBody::from(format!("{error}\n")));
    response.extensions_mut().insert(error.reason);
    let status =
        StatusCode::from_u16(error.reason.status()).expect("every reason's status is a valid one");
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(
        CONTENT_TYPE,
        HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    // The value that of-watchdog writes.
    headers.insert(X_OPENFAAS_INTERNAL, HeaderValue::from_static("of-watchdog"));
    headers.insert(
        X_NEARPATH_REASON,
        HeaderValue::from_static(error.reason.name()),
    );
    if error.reason == Reason::MethodNotAllowed {
        headers.insert(ALLOW, HeaderValue::from_static(FUNCTION_METHODS));
    }
    // Both statuses are temporary: soon another call ends, or an instance has started.
    if [
        StatusCode::TOO_MANY_REQUESTS,
        StatusCode::SERVICE_UNAVAILABLE,
    ]
    .contains(&status)
    {
        headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}

/// Converts the response for gRPC clients: HTTP status 200, no body, and the gRPC status in the
/// header fields ("Trailers-Only" in gRPC's PROTOCOL-HTTP2.md).
pub(crate) fn grpc_error_response(
    mut response: Response<WatchdogBody>,
    error: &PlatformError,
) -> Response<WatchdogBody> {
    *response.body_mut() = WatchdogBody::empty();
    set_trailers_only(&mut response, error);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_an_answer() {
        for reason in Reason::ALL {
            let response = error_response(&watchdog_error(*reason, "x"));
            assert_eq!(response.status().as_u16(), reason.status());
            assert_eq!(response.headers()[X_NEARPATH_REASON], reason.name());
            let waits = response.headers().contains_key(RETRY_AFTER);
            assert_eq!(waits, [429, 503].contains(&reason.status()));
        }
    }

    #[test]
    fn grpc_errors_are_trailers_only_responses() {
        let grpc_code = |reason| {
            let error = watchdog_error(reason, "50 % or größer");
            let response = grpc_error_response(error_response(&error), &error);
            assert_eq!(response.status(), StatusCode::OK);
            assert_eq!(response.headers()[CONTENT_TYPE], "application/grpc");
            assert_eq!(response.headers()[X_NEARPATH_REASON], reason.name());
            let message = response.headers()["grpc-message"].to_str().unwrap();
            assert!(message.ends_with("50 %25 or gr%C3%B6%C3%9Fer"), "{message}");
            response.headers()["grpc-status"]
                .to_str()
                .unwrap()
                .parse::<u16>()
                .unwrap()
        };
        let codes = [
            Reason::ExecTimeout,
            Reason::SlowRequest,
            Reason::Overload,
            Reason::FunctionFailed,
        ]
        .map(grpc_code);
        assert_eq!(codes, [4, 4, 8, 13]);
        assert_eq!(
            [Reason::BadRequest, Reason::BodyTooLarge, Reason::NotFound].map(grpc_code),
            [3, 8, 12]
        );
        assert!(
            Reason::ALL
                .iter()
                .all(|reason| (1..=16).contains(&grpc_code(*reason)))
        );
    }
}
