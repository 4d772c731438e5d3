//! Headers that end at a hop (RFC 9110 section 7.6.1): taken out of requests and responses before they go on.

use http::HeaderMap;
use http::header::{
    CONNECTION, HeaderName, HeaderValue, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE,
    TRANSFER_ENCODING, UPGRADE,
};

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const TRAILERS: &str = "trailers";

/// Takes out what a request's or response's sender meant for this hop only, and what its `Connection` header lists.
/// `TE: trailers` stays: gRPC needs it end to end. With `keep_upgrade`, `Upgrade` stays and `Connection: upgrade` is set.
pub fn strip_hop_headers(headers: &mut HeaderMap, keep_upgrade: bool) {
    if headers.keys().any(is_hop_header) {
        remove_hop_headers(headers, keep_upgrade);
    }
}

/// Whether a header is one of those below. Looking at each name once is cheaper than looking each of those up, and most
/// messages have none.
fn is_hop_header(name: &HeaderName) -> bool {
    match name.as_str().len() {
        2 => *name == TE,
        7 => *name == UPGRADE,
        10 => *name == CONNECTION || *name == KEEP_ALIVE,
        16 => *name == PROXY_CONNECTION,
        17 => *name == TRANSFER_ENCODING,
        18 => *name == PROXY_AUTHENTICATE,
        19 => *name == PROXY_AUTHORIZATION,
        _ => false,
    }
}

fn remove_hop_headers(headers: &mut HeaderMap, keep_upgrade: bool) {
    let upgrade = headers.remove(UPGRADE).filter(|_| keep_upgrade);
    if headers.contains_key(CONNECTION) {
        for name in connection_options(headers) {
            headers.remove(name);
        }
        headers.remove(CONNECTION);
    }
    for name in [
        TRANSFER_ENCODING,
        KEEP_ALIVE,
        PROXY_CONNECTION,
        PROXY_AUTHENTICATE,
        PROXY_AUTHORIZATION,
    ] {
        headers.remove(name);
    }
    keep_te_trailers(headers);
    if let Some(protocol) = upgrade {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, protocol);
    }
}

/// What every `Connection` line names, without the words that are no header of their own and without those whose loss
/// would change the message's meaning (a sender may not use `Connection: host` to hide its host).
fn connection_options(headers: &HeaderMap) -> Vec<HeaderName> {
    const KEPT: [&str; 6] = [
        "close",
        "keep-alive",
        "upgrade",
        "te",
        "content-length",
        "host",
    ];
    let lines = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|line| line.to_str().ok());
    let names = lines.flat_map(|line| line.split(',')).map(str::trim);
    let named = names.filter(|name| !KEPT.iter().any(|kept| name.eq_ignore_ascii_case(kept)));
    named.filter_map(|name| name.parse().ok()).collect()
}

fn keep_te_trailers(headers: &mut HeaderMap) {
    let Some(te) = headers.remove(TE) else { return };
    let wants = te.to_str().is_ok_and(|te| {
        te.split(',')
            .any(|one| one.trim().eq_ignore_ascii_case(TRAILERS))
    });
    if wants {
        headers.insert(TE, HeaderValue::from_static(TRAILERS));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        lines
            .iter()
            .map(|(n, v)| (HeaderName::from_static(n), HeaderValue::from_static(v)))
            .collect()
    }

    fn left(lines: &[(&'static str, &'static str)], keep_upgrade: bool) -> Vec<String> {
        let mut headers = HeaderMap::new();
        for (name, value) in &map(lines) {
            headers.append(name, value.clone());
        }
        strip_hop_headers(&mut headers, keep_upgrade);
        let mut left: Vec<_> = headers
            .iter()
            .map(|(n, v)| format!("{n}: {}", v.to_str().unwrap()))
            .collect();
        left.sort();
        left
    }

    #[test]
    fn hop_headers_are_removed() {
        let sent = [
            ("connection", "close, x-mine"),
            ("connection", "Keep-Alive, x-other"),
            ("x-mine", "1"),
            ("x-other", "2"),
            ("keep-alive", "timeout=5"),
            ("proxy-connection", "keep-alive"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "websocket"),
            ("host", "a"),
        ];
        assert_eq!(left(&sent, false), ["host: a"]);
    }

    #[test]
    fn each_hop_header_alone_is_removed() {
        for name in [
            TE,
            UPGRADE,
            CONNECTION,
            KEEP_ALIVE,
            PROXY_CONNECTION,
            TRANSFER_ENCODING,
            PROXY_AUTHENTICATE,
            PROXY_AUTHORIZATION,
        ] {
            let mut headers = HeaderMap::from_iter([(name, HeaderValue::from_static("x"))]);
            strip_hop_headers(&mut headers, false);
            assert!(headers.is_empty(), "{headers:?}");
        }
    }

    #[test]
    fn an_upgrade_passes_when_requested() {
        let sent = [
            ("connection", "keep-alive, Upgrade"),
            ("upgrade", "websocket"),
        ];
        assert_eq!(
            left(&sent, true),
            ["connection: upgrade", "upgrade: websocket"]
        );
    }

    #[test]
    fn te_keeps_only_trailers() {
        assert_eq!(
            left(&[("te", "gzip, trailers;q=0.5")], false),
            Vec::<String>::new()
        );
        assert_eq!(left(&[("te", "gzip, Trailers")], false), ["te: trailers"]);
    }

    #[test]
    fn connection_cannot_hide_the_host() {
        assert_eq!(
            left(
                &[("connection", "host, content-length"), ("host", "a")],
                false
            ),
            ["host: a"]
        );
    }
}
