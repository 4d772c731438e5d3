//! Preparation of a request for an instance.

use http::header::CONTENT_LENGTH;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, Uri, Version};
use nearpath_types::{PlatformError, Reason, policy};

use super::headers;
use crate::COMPONENT;
use crate::call::GatewayCall;

/// Rewrites the received request for the instance, in place.
///
/// # Errors
/// `body_too_large` if the announced length exceeds the limit.
pub(crate) fn prepare_request(call: &mut GatewayCall) -> Result<(), PlatformError> {
    let Some(mut request) = call.request.take() else {
        return Ok(());
    };
    let limit = call.max_body();
    if let Some(limit) = limit.filter(|limit| announced_length(request.headers()) > *limit) {
        return Err(body_too_large_error(limit));
    }
    // Read before the URI is replaced below.
    let authority = request.uri().authority().cloned();
    headers::rewrite_request_headers(request.headers_mut(), call, authority.as_ref());
    *request.uri_mut() = function_uri(request.uri(), call.path_offset, call.options.is_grpc);
    // gRPC needs HTTP/2 for its trailers. All other calls use HTTP/1.1, which every function
    // server speaks.
    *request.version_mut() = if call.options.is_grpc {
        Version::HTTP_2
    } else {
        Version::HTTP_11
    };
    call.request = Some(request);
    Ok(())
}

/// Returns the error for a body above `limit` bytes.
pub(super) fn body_too_large_error(limit: u64) -> PlatformError {
    let message = format!("the request's body is larger than {limit} bytes");
    PlatformError::new(COMPONENT, Reason::BodyTooLarge, message).governed_by(policy::MAX_BODY)
}

fn announced_length(headers: &HeaderMap) -> u64 {
    let length = headers
        .get(CONTENT_LENGTH)
        .and_then(|length| length.to_str().ok());
    length.and_then(|length| length.parse().ok()).unwrap_or(0)
}

/// Maps `/function/echo/a?b` to `/a?b` and `/function/echo?b` to `/?b`. HTTP/2 needs scheme and
/// authority too.
pub fn function_uri(from: &Uri, path_offset: usize, is_absolute: bool) -> Uri {
    let path_and_query = from.path_and_query().map_or("", PathAndQuery::as_str);
    let function_path = path_and_query.get(path_offset..).unwrap_or_default();
    let function_path = match function_path.as_bytes().first() {
        // `/function/echo` without a slash is the root of the function.
        None => PathAndQuery::from_static("/"),
        Some(b'/') => {
            PathAndQuery::try_from(function_path).unwrap_or_else(|_| PathAndQuery::from_static("/"))
        }
        Some(_) => PathAndQuery::try_from(format!("/{function_path}"))
            .unwrap_or_else(|_| PathAndQuery::from_static("/")),
    };
    let mut parts = http::uri::Parts::default();
    parts.path_and_query = Some(function_path);
    if is_absolute {
        parts.scheme = Some(Scheme::HTTP);
        parts.authority = Some(
            from.authority()
                .cloned()
                .unwrap_or_else(|| Authority::from_static("function")),
        );
    }
    Uri::from_parts(parts).expect("a path alone, or all three parts, make a URI")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_function_sees_its_own_path() {
        for (from, rest, to) in [
            ("/function/echo", 14, "/"),
            ("/function/echo?a=b", 14, "/?a=b"),
            ("/function/echo/", 14, "/"),
            ("/function/echo/a/b?c=d%20e", 14, "/a/b?c=d%20e"),
            ("http://host/function/echo/a", 14, "/a"),
        ] {
            assert_eq!(
                function_uri(&from.parse().unwrap(), rest, false).to_string(),
                to,
                "{from}"
            );
        }
        let is_absolute = function_uri(&"http://host/function/echo/a".parse().unwrap(), 14, true);
        assert_eq!(is_absolute.to_string(), "http://host/a");
    }
}
