//! Responses to requests for streams of bytes to functions here.

use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use nearpath_types::{NodeStreamRequest, PlatformError};
use nearpath_wire::Body;

use super::{method_response, text_response};
use crate::protocol::{STREAM_PROTOCOL, parse_stream_query};

const PROTOCOL: HeaderValue = HeaderValue::from_static(STREAM_PROTOCOL);

/// Reads a request for a stream.
///
/// # Errors
/// The response to a request that is none.
pub fn parse_stream_request<B>(
    request: &Request<B>,
) -> Result<NodeStreamRequest, Box<Response<Body>>> {
    if request.method() != Method::GET {
        return Err(Box::new(method_response()));
    }
    if request.headers().get(header::UPGRADE) != Some(&PROTOCOL) {
        return Err(Box::new(upgrade_required()));
    }
    parse_stream_query(request.uri().query().unwrap_or_default()).ok_or_else(|| {
        let text = "expected function=NAME.NAMESPACE&caller=NAME.NAMESPACE&port=1..65535\n";
        Box::new(text_response(StatusCode::BAD_REQUEST, text.to_owned()))
    })
}

/// Returns the response after which the connection carries the stream.
pub fn stream_accepted() -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    insert_upgrade(&mut response);
    response
}

/// Returns the response to a request that no instance got.
pub fn stream_refused(error: &PlatformError) -> Response<Body> {
    let status = StatusCode::from_u16(error.reason.status());
    let status = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR); // all of the list are valid
    text_response(status, format!("{error}\n"))
}

/// RFC 9110 section 15.5.22.
fn upgrade_required() -> Response<Body> {
    let text = format!("expected an upgrade to {STREAM_PROTOCOL}\n");
    let mut response = text_response(StatusCode::UPGRADE_REQUIRED, text);
    insert_upgrade(&mut response);
    response
}

fn insert_upgrade(response: &mut Response<Body>) {
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, PROTOCOL);
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_types::Reason;

    fn parse(method: &str, path: &str, upgrade: &str) -> Result<NodeStreamRequest, StatusCode> {
        let request = Request::builder().method(method).uri(path);
        let request = request.header(header::UPGRADE, upgrade).body(()).unwrap();
        parse_stream_request(&request).map_err(|response| response.status())
    }

    #[test]
    fn only_whole_requests_for_this_protocol_are_read() {
        let path = "/node/v1/stream?function=store.shop&caller=cart.shop&port=6379";
        assert_eq!(parse("GET", path, STREAM_PROTOCOL).unwrap().port, 6379);
        let refused = |method, path, upgrade| parse(method, path, upgrade).unwrap_err().as_u16();
        assert_eq!(refused("POST", path, STREAM_PROTOCOL), 405);
        assert_eq!(refused("GET", path, "websocket"), 426);
        assert_eq!(refused("GET", "/node/v1/stream", STREAM_PROTOCOL), 400);
    }

    #[test]
    fn a_refusal_has_the_status_of_its_reason() {
        let error = PlatformError::new("node", Reason::NotHere, "it runs elsewhere");
        assert_eq!(stream_refused(&error).status(), 503);
        assert_eq!(stream_accepted().status(), 101);
    }
}
