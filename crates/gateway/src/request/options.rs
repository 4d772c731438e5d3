//! Options in a request head, and the identity of requests in responses.

use super::grpc::is_grpc;
use super::ids::{CallId, StartTime};
use http::header::{ACCEPT, HeaderName, HeaderValue, TRAILER, UPGRADE};
use http::{HeaderMap, Request, Version};

/// Id of the request, from the caller or generated.
pub(crate) const X_CALL_ID: HeaderName = HeaderName::from_static("x-call-id");
/// Arrival at the gateway in Unix nanoseconds.
pub(crate) const X_START_TIME: HeaderName = HeaderName::from_static("x-start-time");
/// Name of the gateway.
pub(crate) const X_SERVED_BY: HeaderName = HeaderName::from_static("x-served-by");
/// Requests and reports the path of a request.
pub(crate) const X_NEARPATH_PATH: HeaderName = HeaderName::from_static("x-nearpath-path");

/// Options in the head of a request.
#[derive(Debug)]
pub struct RequestOptions {
    /// `X-Call-Id`, from the caller or generated.
    pub call_id: HeaderValue,
    /// `X-Start-Time`.
    pub start_time: HeaderValue,
    /// Errors are rendered as JSON.
    pub wants_json: bool,
    /// An event stream or an upgrade is requested, so no deadline of ours is announced.
    pub wants_stream: bool,
    /// An upgrade of the connection is requested.
    pub wants_upgrade: bool,
    /// gRPC, so HTTP/2 is used to the instance.
    pub is_grpc: bool,
    /// The request has trailers after its body (RFC 9110 section 6.6.2).
    pub announces_trailers: bool,
    /// The method is `HEAD`.
    pub is_head: bool,
    /// The response reports the path of the request and the obstacle to a shorter one.
    pub wants_path: bool,
}

impl RequestOptions {
    /// Reads the options of a request.
    pub fn from_request<B>(request: &Request<B>) -> Self {
        let headers = request.headers();
        let accept = headers.get(ACCEPT).map_or(&[][..], HeaderValue::as_bytes);
        let wants_upgrade = wants_upgrade(request);
        Self {
            call_id: headers
                .get(X_CALL_ID)
                .cloned()
                .unwrap_or_else(|| ascii_value(CallId::new().as_bytes())),
            start_time: ascii_value(StartTime::now().as_bytes()),
            wants_json: contains_ignoring_case(accept, b"application/json"),
            wants_stream: wants_upgrade || names_stream(accept),
            wants_upgrade,
            is_grpc: is_grpc(request),
            announces_trailers: headers.contains_key(TRAILER),
            is_head: request.method() == http::Method::HEAD,
            wants_path: headers.contains_key(X_NEARPATH_PATH),
        }
    }

    /// Removes what an event cannot have, whatever its publisher writes: streams, upgrades, trailers.
    pub(crate) fn limit_to_event(&mut self) {
        (self.wants_stream, self.wants_upgrade) = (false, false);
        (self.is_grpc, self.announces_trailers) = (false, false);
    }

    /// Adds the identity of request and gateway to a head.
    pub(crate) fn insert_identity(&self, headers: &mut HeaderMap, served_by: &HeaderValue) {
        headers.insert(X_CALL_ID, self.call_id.clone());
        headers.insert(X_START_TIME, self.start_time.clone());
        headers.insert(X_SERVED_BY, served_by.clone());
    }
}

fn ascii_value(text: &[u8]) -> HeaderValue {
    HeaderValue::from_bytes(text).expect("digits, letters and hyphens are ASCII")
}

/// Returns whether a content type, or a list of them, names an endless stream.
pub(crate) fn names_stream(content_types: &[u8]) -> bool {
    contains_ignoring_case(content_types, b"text/event-stream")
        || contains_ignoring_case(content_types, b"application/x-ndjson")
}

/// Returns whether an HTTP/1.1 upgrade is requested. Never h2c, which would hide later requests
/// from the gateway (RFC 9113 dropped it).
fn wants_upgrade<B>(request: &Request<B>) -> bool {
    let protocol = request.headers().get(UPGRADE).map(HeaderValue::as_bytes);
    request.version() == Version::HTTP_11
        && protocol.is_some_and(|protocol| {
            !contains_ignoring_case(protocol, b"h2c") && !contains_ignoring_case(protocol, b"h2")
        })
}

fn contains_ignoring_case(text: &[u8], word: &[u8]) -> bool {
    text.len() >= word.len()
        && text
            .windows(word.len())
            .any(|part| part.eq_ignore_ascii_case(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upgrade_to_http_2_is_ignored() {
        let wants_upgrade = |protocol: &str| {
            RequestOptions::from_request(
                &Request::builder()
                    .header("upgrade", protocol)
                    .body(())
                    .unwrap(),
            )
            .wants_upgrade
        };
        assert!(
            wants_upgrade("websocket") && !wants_upgrade("h2c") && !wants_upgrade("websocket, h2c")
        );
    }
}
