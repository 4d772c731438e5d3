//! Checks of a request head that the `h3` crate leaves out. A malformed head (RFC 9114 section
//! 4.1.2) must not be forwarded: over HTTP/1.1 the next hop could read two requests (request
//! smuggling).

use http::header::{
    CONNECTION, CONTENT_LENGTH, HeaderName, HeaderValue, TE, TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderMap, Request};

use crate::hop::headers::join_cookies;

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// Reasons why a head is malformed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MalformedHead {
    /// A field that belongs to a connection of HTTP/1.1.
    #[error(
        "invalid header for HTTP/3: Connection, Transfer-Encoding, Upgrade, or TE other than `trailers` (RFC 9114 section 4.2)"
    )]
    ConnectionField,
    /// A pseudo-header field is repeated, follows other fields, is a response's, or is in a form
    /// that cannot be checked.
    #[error(
        "invalid pseudo-header field: repeated, after other fields, `:status`, or in an unusual encoding (RFC 9114 section 4.3)"
    )]
    PseudoHeader,
    /// Content-Length values are invalid or contradict each other.
    #[error("invalid Content-Length: not a number, or contradictory values (RFC 9110 section 8.6)")]
    ContentLength,
}

/// Checks a head, and rewrites what HTTP/1.1 expresses differently. Returns the body's length, if
/// the head declares it.
///
/// # Errors
/// See [`MalformedHead`].
pub(super) fn check_head<B>(request: &mut Request<B>) -> Result<Option<u64>, MalformedHead> {
    let headers = request.headers_mut();
    if headers.keys().any(is_connection_header)
        || headers.get_all(TE).iter().any(|te| te != "trailers")
    {
        return Err(MalformedHead::ConnectionField);
    }
    join_cookies(headers);
    content_length(headers)
}

pub(super) fn is_connection_header(name: &HeaderName) -> bool {
    [
        CONNECTION,
        TRANSFER_ENCODING,
        UPGRADE,
        KEEP_ALIVE,
        PROXY_CONNECTION,
    ]
    .contains(name)
}

fn content_length(headers: &HeaderMap) -> Result<Option<u64>, MalformedHead> {
    let mut length = None;
    for value in headers.get_all(CONTENT_LENGTH) {
        let this = parse_digits(value).ok_or(MalformedHead::ContentLength)?;
        // Equal repetitions are allowed (RFC 9110 section 8.6).
        if *length.get_or_insert(this) != this {
            return Err(MalformedHead::ContentLength);
        }
    }
    Ok(length)
}

fn parse_digits(value: &HeaderValue) -> Option<u64> {
    let text = value.to_str().ok()?;
    text.bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn request_with(lines: &[(&str, &str)]) -> Request<()> {
        let builder = lines
            .iter()
            .fold(Request::builder(), |builder, (name, value)| {
                builder.header(*name, *value)
            });
        builder.body(()).unwrap()
    }

    #[test]
    fn headers_of_a_connection_are_malformed() {
        for line in [
            ("connection", "close"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "websocket"),
            ("keep-alive", "1"),
            ("proxy-connection", "keep-alive"),
            ("te", "gzip, trailers"),
        ] {
            assert_eq!(
                check_head(&mut request_with(&[line])),
                Err(MalformedHead::ConnectionField),
                "{line:?}"
            );
        }
        assert_eq!(
            check_head(&mut request_with(&[("te", "trailers")])),
            Ok(None)
        );
    }

    #[test]
    fn lengths_must_agree() {
        let length = |lines: &[&str]| {
            let lines: Vec<_> = lines.iter().map(|line| ("content-length", *line)).collect();
            check_head(&mut request_with(&lines))
        };
        assert_eq!(
            (length(&[]), length(&["7"]), length(&["7", "7"])),
            (Ok(None), Ok(Some(7)), Ok(Some(7)))
        );
        for bad in [
            &["7", "8"][..],
            &["+7"],
            &["7,7"],
            &[""],
            &["-1"],
            &["99999999999999999999"],
        ] {
            assert_eq!(length(bad), Err(MalformedHead::ContentLength), "{bad:?}");
        }
    }

    #[test]
    fn cookies_become_one_line() {
        let mut request = request_with(&[("cookie", "a=1"), ("x", "y"), ("cookie", "b=2")]);
        check_head(&mut request).unwrap();
        let cookies: Vec<_> = request
            .headers()
            .get_all(http::header::COOKIE)
            .iter()
            .collect();
        assert_eq!(cookies, ["a=1; b=2"]);
    }

    proptest! {
        #[test]
        fn a_length_is_what_its_digits_say(value in "[0-9+ ,-]{0,6}") {
            let plain = !value.is_empty() && value.bytes().all(|b| b.is_ascii_digit());
            let checked = check_head(&mut request_with(&[("content-length", &value)]));
            prop_assert_eq!(checked, if plain { Ok(Some(value.parse().unwrap())) } else { Err(MalformedHead::ContentLength) });
        }
    }
}
