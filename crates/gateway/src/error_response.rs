//! Responses for platform errors: component, reason, governing setting, and whether to retry.

use bytes::Bytes;
use http::header::{ACCEPT, ALLOW, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use http::{Request, Response, StatusCode};
use nearpath_types::reason::FUNCTION_METHODS;
use nearpath_types::{PlatformError, Reason};
use nearpath_wire::Body;
use nearpath_wire::server::HttpLimits;

use crate::COMPONENT;

/// Marks a response made by the platform, not by the function.
pub(crate) const X_OPENFAAS_INTERNAL: HeaderName = HeaderName::from_static("x-openfaas-internal");
/// Names the reason of a platform error.
pub(crate) const X_NEARPATH_REASON: HeaderName = HeaderName::from_static("x-nearpath-reason");

const JSON_TYPE: HeaderValue = HeaderValue::from_static("application/json");
const TEXT_TYPE: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
/// Value of `Retry-After`, in seconds. Queues and cold starts change within a second.
const RETRY_AFTER_SECONDS: HeaderValue = HeaderValue::from_static("1");

/// Renders the HTTP/1.1 response to a head that could not be parsed. The connection closes after
/// it. `status` is the one that hyper chose.
pub(crate) fn render_unreadable(status: u16, limits: &HttpLimits) -> Bytes {
    // hyper reports a long request line as 414 and long or many fields as 431. Callers see one
    // reason for both, because the same two limits govern them.
    let error = match status {
        414 | 431 => PlatformError::new(
            COMPONENT,
            Reason::HeadersTooLarge,
            head_too_large_text(limits),
        ),
        _ => PlatformError::new(
            COMPONENT,
            Reason::BadRequest,
            "the request's head is not HTTP/1.1 (RFC 9112)",
        ),
    };
    let text = format!("{error}\n");
    let head = render_error(&error, false);
    let (status, len) = (head.status(), text.len());
    // Encoded by hand, because it replaces bytes that hyper has encoded already; see
    // `listen::http1_errors`.
    let mut response =
        format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {len}\r\n").into_bytes();
    for (name, value) in head.headers() {
        response.extend([name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"].concat());
    }
    response.extend(b"\r\n");
    response.extend(text.as_bytes());
    response.into()
}

fn head_too_large_text(limits: &HttpLimits) -> String {
    let HttpLimits {
        max_header_bytes: header_bytes,
        max_headers: headers,
        ..
    } = limits;
    format!(
        "the request's head is larger than {header_bytes} bytes or has more than {headers} fields; both limits are fixed"
    )
}

/// Renders an error as an HTTP response: JSON if `json`, else one line of text.
pub(crate) fn render_error(error: &PlatformError, json: bool) -> Response<Body> {
    let body = if json {
        error.to_json()
    } else {
        format!("{error}\n")
    };
    let mut response = Response::new(Body::from(body));
    // Every reason has a valid status. The fallback avoids a panic on the path of a refusal.
    let status = error.reason.status();
    *response.status_mut() =
        StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, if json { JSON_TYPE } else { TEXT_TYPE });
    headers.insert(
        X_OPENFAAS_INTERNAL,
        HeaderValue::from_static(error.component),
    );
    headers.insert(
        X_NEARPATH_REASON,
        HeaderValue::from_static(error.reason.name()),
    );
    if error.reason == Reason::MethodNotAllowed {
        headers.insert(ALLOW, HeaderValue::from_static(FUNCTION_METHODS));
    }
    // `Retry-After` is defined for 503 (RFC 9110 section 10.2.3) and 429 (RFC 6585 section 4).
    if error.reason.retry_is_safe() && matches!(status, 429 | 503) {
        headers.insert(RETRY_AFTER, retry_after(error));
    }
    response
}

fn retry_after(error: &PlatformError) -> HeaderValue {
    match error.retry_after {
        None => RETRY_AFTER_SECONDS,
        // Rounded up: the field has whole seconds, and an early retry would fail.
        Some(time) => (time.as_millis().div_ceil(1_000).max(1) as u64).into(),
    }
}

/// Returns whether the caller accepts JSON.
pub(crate) fn wants_json<B>(request: &Request<B>) -> bool {
    let accept = request
        .headers()
        .get(ACCEPT)
        .and_then(|accept| accept.to_str().ok());
    accept.is_some_and(|accept| accept.contains("application/json"))
}
