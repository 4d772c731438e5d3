//! Heads of requests that a hop receives: one host and one framing, whatever the caller sent.

use http::header::{HOST, HeaderMap, HeaderValue, TRANSFER_ENCODING};
use http::uri::Authority;
use http::{Request, Version};

use super::headers::is_valid_host;

/// Returns why a request is refused as malformed; `None` if its host and its framing have one
/// meaning.
pub fn head_fault<B>(request: &Request<B>) -> Option<&'static str> {
    if !has_one_host(request) {
        return Some("a request must have exactly one Host field (RFC 9112 section 3.2)");
    }
    if !has_valid_host(request) {
        return Some("Host or :authority is not HOST or HOST:PORT (RFC 9110 section 7.2)");
    }
    (!has_one_coding(request))
        .then_some("Transfer-Encoding is not chunked, once (RFC 9112 section 6.1)")
}

/// Removes `Host` and returns the request's host. HTTP/2 and HTTP/3 have `:authority` instead, and
/// the target of a request in absolute form wins over `Host` (RFC 9113 section 8.3.1, RFC 9112
/// section 3.2.2).
pub fn take_host(headers: &mut HeaderMap, authority: Option<&Authority>) -> Option<HeaderValue> {
    let host = headers.remove(HOST);
    authority
        .and_then(|authority| HeaderValue::from_str(authority.as_str()).ok())
        .or(host)
}

/// Returns whether the host is unambiguous. HTTP/1.0 may omit it, HTTP/2 has `:authority`
/// instead.
fn has_one_host<B>(request: &Request<B>) -> bool {
    let mut hosts = request.headers().get_all(HOST).iter();
    match (hosts.next(), hosts.next()) {
        (Some(_), None) => true,
        (None, _) => request.version() != Version::HTTP_11,
        (Some(_), Some(_)) => false,
    }
}

/// Returns whether all hosts of a request are valid; a function may read any of them.
fn has_valid_host<B>(request: &Request<B>) -> bool {
    let authority = request.uri().authority().map(|it| it.as_str().as_bytes());
    let host = request.headers().get(HOST).map(HeaderValue::as_bytes);
    authority.into_iter().chain(host).all(is_valid_host)
}

/// Returns whether the body is framed in one way. hyper reads a list that ends in `chunked`; a
/// function's server could read it otherwise.
fn has_one_coding<B>(request: &Request<B>) -> bool {
    let mut codings = request.headers().get_all(TRANSFER_ENCODING).iter();
    let is_chunked = |coding: &HeaderValue| coding.as_bytes().eq_ignore_ascii_case(b"chunked");
    codings.next().is_none_or(is_chunked) && codings.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(uri: &str, fields: &[(&str, &str)]) -> Request<()> {
        let named = fields
            .iter()
            .fold(Request::builder().uri(uri), |request, (name, value)| {
                request.header(*name, *value)
            });
        named.body(()).unwrap()
    }

    #[test]
    fn a_head_has_one_host_and_one_framing() {
        let chunked = ("transfer-encoding", "Chunked");
        for fields in [&[("host", "a:80")][..], &[("host", "a"), chunked]] {
            assert_eq!(head_fault(&request("/", fields)), None, "{fields:?}");
        }
        for fields in [
            &[][..],
            &[("host", "a"), ("host", "a")],
            &[("host", "user@a")],
            &[("host", "a"), ("transfer-encoding", "gzip, chunked")],
            &[("host", "a"), chunked, chunked],
        ] {
            assert!(head_fault(&request("/", fields)).is_some(), "{fields:?}");
        }
        assert!(head_fault(&request("http://user@a/", &[("host", "a")])).is_some());
    }

    #[test]
    fn a_host_may_be_missing_where_the_version_allows_it() {
        for version in [Version::HTTP_10, Version::HTTP_2] {
            let mut unnamed = request("/", &[]);
            *unnamed.version_mut() = version;
            assert_eq!(head_fault(&unnamed), None);
        }
    }

    #[test]
    fn the_target_wins_over_the_host() {
        let mut sent = request("http://target:8080/", &[("host", "other")]);
        let authority = sent.uri().authority().cloned();
        let host = take_host(sent.headers_mut(), authority.as_ref());
        assert_eq!(host.unwrap(), "target:8080");
        assert!(sent.headers().is_empty());
        let mut sent = request("/", &[("host", "other")]);
        assert_eq!(take_host(sent.headers_mut(), None).unwrap(), "other");
    }
}
