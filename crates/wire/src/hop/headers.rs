//! Hop-by-hop headers (RFC 9110 section 7.6.1), which are removed from requests and responses
//! before they are forwarded.

use http::header::{
    CONNECTION, EXPECT, HeaderName, HeaderValue, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE,
    TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderMap, Method};

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const TRAILERS: &str = "trailers";

/// Connection options that name no removable header, or a header whose loss would change what the
/// message means: a sender may not use `Connection: host` to hide its host, and framing is hyper's.
const KEPT_OPTIONS: [&str; 8] = [
    "close",
    "keep-alive",
    "upgrade",
    "te",
    "trailer",
    "content-length",
    "transfer-encoding",
    "host",
];

/// Removes hop-by-hop headers and those that `Connection` lists. `TE: trailers` stays: gRPC needs
/// it end to end. With `keep_upgrade`, `Upgrade` stays and `Connection: upgrade` is set.
pub fn strip_hop_headers(headers: &mut HeaderMap, keep_upgrade: bool) {
    if headers.keys().any(is_hop_header) {
        remove_hop_headers(headers, keep_upgrade);
    }
}

/// Returns true for a header that is removed. Checking each name once is cheaper than looking up
/// each known name, and most messages have none of them.
fn is_hop_header(name: &HeaderName) -> bool {
    match name.as_str().len() {
        2 => *name == TE,
        6 => *name == EXPECT,
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
    strip_connection_headers(headers, keep_upgrade);
    for name in [
        TRANSFER_ENCODING,
        PROXY_CONNECTION,
        PROXY_AUTHENTICATE,
        PROXY_AUTHORIZATION,
        // The server of this hop has sent `100 Continue` by the time that the body is read.
        EXPECT,
    ] {
        headers.remove(name);
    }
    keep_te_trailers(headers);
}

/// Removes what is meant for one connection only: `Connection`, the headers that it lists, and
/// `Keep-Alive`.
///
/// For a proxy that its client does not know of: headers for proxies pass it.
pub fn strip_connection_headers(headers: &mut HeaderMap, keep_upgrade: bool) {
    // Taken before `Connection` is evaluated, which lists `upgrade` and would remove it.
    let upgrade = headers.remove(UPGRADE).filter(|_| keep_upgrade);
    if headers.contains_key(CONNECTION) {
        // The names are collected first: the map cannot be changed while its values are read.
        for name in listed_headers(headers) {
            headers.remove(name);
        }
        headers.remove(CONNECTION);
    }
    headers.remove(KEEP_ALIVE);
    if let Some(protocol) = upgrade {
        // RFC 9110 section 7.8: `Upgrade` without this option is ignored.
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, protocol);
    }
}

/// Returns whether a request wants to leave HTTP.
pub fn wants_upgrade(method: &Method, headers: &HeaderMap) -> bool {
    method == Method::CONNECT
        // RFC 9110 section 7.8: without the connection option the header is meant for no hop and is
        // ignored.
        || (headers.contains_key(UPGRADE)
            && connection_options(headers).any(|option| option.eq_ignore_ascii_case("upgrade")))
}

fn listed_headers(headers: &HeaderMap) -> Vec<HeaderName> {
    let is_kept = |option: &&str| {
        KEPT_OPTIONS
            .iter()
            .any(|kept| option.eq_ignore_ascii_case(kept))
    };
    connection_options(headers)
        .filter(|option| !is_kept(option))
        .filter_map(|option| option.parse().ok())
        .collect()
}

fn connection_options(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let lines = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|line| line.to_str().ok());
    lines.flat_map(|line| line.split(',')).map(str::trim)
}

fn keep_te_trailers(headers: &mut HeaderMap) {
    let Some(te) = headers.remove(TE) else { return };
    // Compared without a weight: `trailers` takes none (RFC 9110 section 10.1.4).
    let wants = te.to_str().is_ok_and(|te| {
        te.split(',')
            .any(|option| option.trim().eq_ignore_ascii_case(TRAILERS))
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
            EXPECT,
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

    #[test]
    fn only_end_to_end_headers_stay() {
        let sent = [
            ("connection", "keep-alive, X-Hop"),
            ("connection", "x-hop-too"),
            ("x-hop", "1"),
            ("x-hop-too", "1"),
            ("keep-alive", "timeout=5"),
            ("transfer-encoding", "chunked"),
            ("te", "gzip, trailers"),
            ("upgrade", "h2c"),
            ("expect", "100-continue"),
            ("trailer", "x-sum"),
            ("x-end", "1"),
        ];
        assert_eq!(
            left(&sent, false),
            ["te: trailers", "trailer: x-sum", "x-end: 1"]
        );
    }

    #[test]
    fn an_upgrade_alone_is_kept_with_its_option() {
        let sent = [("connection", "Upgrade"), ("upgrade", "websocket")];
        assert_eq!(
            left(&sent, true),
            ["connection: upgrade", "upgrade: websocket"]
        );
    }

    #[test]
    fn connection_headers_alone_are_removed_for_a_hidden_proxy() {
        let mut headers = map(&[
            ("connection", "close, X-Mine, host"),
            ("x-mine", "1"),
            ("host", "h"),
            ("keep-alive", "5"),
            ("proxy-authorization", "p"),
        ]);
        strip_connection_headers(&mut headers, false);
        assert_eq!(headers, map(&[("host", "h"), ("proxy-authorization", "p")]));
    }

    #[test]
    fn an_upgrade_needs_its_connection_option() {
        let sent = [
            ("connection", "keep-alive, Upgrade"),
            ("upgrade", "websocket"),
        ];
        assert!(wants_upgrade(&Method::GET, &map(&sent)));
        assert!(!wants_upgrade(&Method::GET, &map(&sent[1..])));
        let mut headers = map(&sent);
        strip_connection_headers(&mut headers, true);
        assert_eq!(
            headers,
            map(&[("connection", "upgrade"), ("upgrade", "websocket")])
        );
    }
}
