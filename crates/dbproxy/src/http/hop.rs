//! Headers that end at a hop (RFC 9110 section 7.6.1). The pool is not a proxy that clients know of: what is meant for proxies passes.

use http::header::{CONNECTION, HeaderName, HeaderValue, UPGRADE};
use http::{HeaderMap, Method};

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
/// What `Connection` may list without naming a header that ends here, or whose loss would change what a message means.
const KEPT_OPTIONS: [&str; 7] = [
    "close",
    "keep-alive",
    "upgrade",
    "te",
    "content-length",
    "transfer-encoding",
    "host",
];

/// Takes out what is meant for one connection only; the upgrade stays where one is asked for.
pub(super) fn strip_hop_headers(headers: &mut HeaderMap, upgrade: bool) {
    let upgrade = headers.remove(UPGRADE).filter(|_| upgrade);
    for name in listed_headers(headers) {
        headers.remove(name);
    }
    headers.remove(CONNECTION);
    headers.remove(KEEP_ALIVE);
    if let Some(protocol) = upgrade {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, protocol);
    }
}

fn listed_headers(headers: &HeaderMap) -> Vec<HeaderName> {
    connection_options(headers)
        .filter(|word| {
            !KEPT_OPTIONS
                .iter()
                .any(|kept| word.eq_ignore_ascii_case(kept))
        })
        .filter_map(|word| word.parse().ok())
        .collect()
}

fn connection_options(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let lines = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|line| line.to_str().ok());
    lines.flat_map(|line| line.split(',')).map(str::trim)
}

/// Whether a request wants to leave HTTP.
pub(super) fn wants_upgrade(method: &Method, headers: &HeaderMap) -> bool {
    method == Method::CONNECT
        || (headers.contains_key(UPGRADE)
            && connection_options(headers).any(|word| word.eq_ignore_ascii_case("upgrade")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header_map(all: &[(&'static str, &'static str)]) -> HeaderMap {
        all.iter()
            .map(|(name, value)| {
                (
                    HeaderName::from_static(name),
                    HeaderValue::from_static(value),
                )
            })
            .collect()
    }

    #[test]
    fn headers_that_connection_lists_are_removed_except_framing() {
        let mut all = header_map(&[
            ("connection", "close, X-Mine, host"),
            ("x-mine", "1"),
            ("host", "h"),
            ("keep-alive", "5"),
            ("proxy-authorization", "p"),
        ]);
        strip_hop_headers(&mut all, false);
        assert_eq!(
            all,
            header_map(&[("host", "h"), ("proxy-authorization", "p")])
        );
    }

    #[test]
    fn an_upgrade_is_kept_when_requested() {
        let asks = [
            ("connection", "keep-alive, Upgrade"),
            ("upgrade", "websocket"),
        ];
        assert!(
            wants_upgrade(&Method::GET, &header_map(&asks))
                && !wants_upgrade(&Method::GET, &header_map(&asks[1..]))
        );
        let mut all = header_map(&asks);
        strip_hop_headers(&mut all, true);
        assert_eq!(
            all,
            header_map(&[("connection", "upgrade"), ("upgrade", "websocket")])
        );
    }
}
