//! Answers that the watchdog makes itself when a call cannot be made or fails: status, marker, reason, text.

use std::borrow::Cow;

use http::header::{CONTENT_TYPE, HeaderName, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};
use nearpath_types::{PlatformError, Reason};

use crate::body::Body;

/// OpenFaaS's mark of an answer that the tenant's code did not make; its queue worker repeats these.
pub(crate) const INTERNAL: HeaderName = HeaderName::from_static("x-openfaas-internal");
/// The reason's name.
pub(crate) const REASON: HeaderName = HeaderName::from_static("x-nearpath-reason");

/// An error of this component.
pub(crate) fn error(reason: Reason, message: impl Into<Cow<'static, str>>) -> PlatformError {
    PlatformError::new("watchdog", reason, message)
}

/// The answer for it.
pub(crate) fn answer(error: &PlatformError) -> Response<Body> {
    let mut response = Response::new(Body::from(format!("{error}\n")));
    let status = StatusCode::from_u16(error.reason.status()).expect("every reason's status is a valid one");
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(INTERNAL, HeaderValue::from_static("of-watchdog"));
    headers.insert(REASON, HeaderValue::from_static(error.reason.name()));
    if [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE].contains(&status) {
        headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_an_answer() {
        for reason in Reason::ALL {
            let response = answer(&error(*reason, "x"));
            assert_eq!(response.status().as_u16(), reason.status());
            assert_eq!(response.headers()[REASON], reason.name());
            let waits = response.headers().contains_key(RETRY_AFTER);
            assert_eq!(waits, [429, 503].contains(&reason.status()));
        }
    }
}
