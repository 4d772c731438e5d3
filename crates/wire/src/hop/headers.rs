//! Hop-by-hop headers (RFC 9110 section 7.6.1), which are removed from requests and responses
//! before they are forwarded.

use http::header::{
    CONNECTION, COOKIE, EXPECT, HeaderName, HeaderValue, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION,
    TE, TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderMap, Method, Request};
use http_body::Body;
use nearpath_types::platform_field::{
    CALLER_FIELD, FUNCTION_FIELD, INTERNAL_FIELD, TOPIC_FIELD, is_platform_field,
};

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
    if headers.keys().any(|name| is_hop_field(name.as_str())) {
        remove_hop_headers(headers, keep_upgrade);
    }
}

/// Returns whether a field belongs to one hop (RFC 9110 section 7.6.1), for a name in lower case.
/// By length first: most names are then decided without a comparison.
pub fn is_hop_field(name: &str) -> bool {
    match name.len() {
        2 => name == "te",
        6 => name == "expect",
        7 => name == "upgrade",
        10 => name == "connection" || name == "keep-alive",
        16 => name == "proxy-connection",
        17 => name == "transfer-encoding",
        18 => name == "proxy-authenticate",
        19 => name == "proxy-authorization",
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

/// [`CALLER_FIELD`] as a header.
pub const CALLER: HeaderName = HeaderName::from_static(CALLER_FIELD);
/// [`FUNCTION_FIELD`] as a header.
pub const FUNCTION: HeaderName = HeaderName::from_static(FUNCTION_FIELD);
/// [`TOPIC_FIELD`] as a header.
pub const TOPIC: HeaderName = HeaderName::from_static(TOPIC_FIELD);
/// Header in which a function finds the topic of an event, as from OpenFaaS's connectors.
pub const X_TOPIC: HeaderName = HeaderName::from_static("x-topic");
const FORWARDED: HeaderName = HeaderName::from_static("forwarded");
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Removes the headers that only the platform may set, from a message of a caller or a tenant.
pub fn strip_platform_headers(headers: &mut HeaderMap) {
    let forged: Vec<_> = headers
        .keys()
        .filter(|name| is_platform_field(name.as_str()))
        .cloned()
        .collect();
    for name in forged {
        headers.remove(name);
    }
}

/// Appends a field of a message. Names and values that HTTP does not allow are dropped: their writer may be
/// hostile.
pub fn append_untrusted(headers: &mut HeaderMap, name: &str, value: &[u8]) {
    let name = HeaderName::from_bytes(name.as_bytes());
    if let (Ok(name), Ok(value)) = (name, HeaderValue::from_bytes(value)) {
        headers.append(name, value);
    }
}

/// Keeps only the first value of `X-OpenFaaS-Internal`. A watchdog's head may have had one
/// before the platform's was added.
pub fn keep_one_origin(headers: &mut HeaderMap) {
    if let Some(origin) = headers.get(INTERNAL_FIELD).cloned() {
        headers.insert(INTERNAL_FIELD, origin); // replaces all values
    }
}

/// Appends a client to `X-Forwarded-For`, and removes `Forwarded`, which would contradict it.
pub fn append_forwarded_for(headers: &mut HeaderMap, client: &HeaderValue) {
    headers.remove(FORWARDED);
    let mut chain = Vec::new();
    for hop in headers.get_all(X_FORWARDED_FOR) {
        chain.extend_from_slice(hop.as_bytes());
        chain.extend_from_slice(b", ");
    }
    let appended = match chain.is_empty() {
        true => client.clone(),
        false => {
            chain.extend_from_slice(client.as_bytes());
            HeaderValue::from_bytes(&chain).expect("values and a separator are a value")
        }
    };
    headers.insert(X_FORWARDED_FOR, appended);
}

/// Joins several `Cookie` fields, as HTTP/2 and HTTP/3 clients send them, to the one that functions
/// expect (RFC 9113 section 8.2.3).
pub fn join_cookies(headers: &mut HeaderMap) {
    let mut cookies = headers.get_all(COOKIE).iter();
    let (Some(first), Some(second)) = (cookies.next(), cookies.next()) else {
        return;
    };
    let mut joined = first.as_bytes().to_vec();
    for cookie in std::iter::once(second).chain(cookies) {
        joined.extend_from_slice(b"; ");
        joined.extend_from_slice(cookie.as_bytes());
    }
    let joined = HeaderValue::from_bytes(&joined).expect("values and a separator are a value");
    headers.insert(COOKIE, joined);
}

/// Announces a body of unknown length in a request that is to be sent over HTTP/1.1. hyper sends
/// such a body with GET and HEAD only if the head says so, else it drops the body.
pub fn announce_body<B: Body>(request: &mut Request<B>) {
    let is_rare = matches!(*request.method(), Method::GET | Method::HEAD);
    let body = request.body();
    if is_rare && !body.is_end_stream() && body.size_hint().exact().is_none() {
        let chunked = HeaderValue::from_static("chunked");
        request.headers_mut().insert(TRANSFER_ENCODING, chunked);
    }
}

/// Returns whether a text is a host with an optional port (RFC 9110 section 7.2), without user and
/// without characters that a function could read as the end of the host.
pub fn is_valid_host(text: &[u8]) -> bool {
    let (host, port) = match text.iter().rposition(|byte| *byte == b':') {
        // A colon within brackets belongs to an IPv6 address.
        Some(at) if !text[at..].contains(&b']') => (&text[..at], &text[at + 1..]),
        _ => (text, &[][..]),
    };
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~%!$&'()*+;=".contains(byte);
    let is_address = |byte: &u8| byte.is_ascii_hexdigit() || b":.".contains(byte);
    let valid_host = match host {
        [b'[', address @ .., b']'] => address.iter().all(is_address),
        name => name.iter().all(is_name),
    };
    valid_host && port.iter().all(u8::is_ascii_digit)
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
    fn cookies_become_one_field() {
        let mut headers = HeaderMap::new();
        for cookie in ["a=1", "b=2", "c=3"] {
            headers.append("cookie", HeaderValue::from_static(cookie));
        }
        join_cookies(&mut headers);
        assert_eq!(headers, map(&[("cookie", "a=1; b=2; c=3")]));
    }

    #[test]
    fn only_the_platform_sets_its_headers() {
        let mut headers = map(&[
            ("x-nearpath-caller", "admin.openfaas-fn"),
            ("x-nearpath-reason", "draining"),
            ("x-openfaas-internal", "gateway"),
            ("x-near", "1"),
        ]);
        strip_platform_headers(&mut headers);
        assert_eq!(headers, map(&[("x-near", "1")]));
    }

    #[test]
    fn a_client_is_appended_to_those_before_it() {
        let client = HeaderValue::from_static("192.0.2.7");
        let mut headers = map(&[("forwarded", "for=10.0.0.1")]);
        append_forwarded_for(&mut headers, &client);
        assert_eq!(headers, map(&[("x-forwarded-for", "192.0.2.7")]));
        headers.append("x-forwarded-for", HeaderValue::from_static("10.0.0.2"));
        append_forwarded_for(&mut headers, &client);
        assert_eq!(
            headers,
            map(&[("x-forwarded-for", "192.0.2.7, 10.0.0.2, 192.0.2.7")])
        );
    }

    #[test]
    fn a_host_has_one_meaning() {
        for host in [
            "",
            "h",
            "h:80",
            "h:",
            "192.0.2.7:8080",
            "[::1]",
            "[2001:db8::7]:443",
            "a_b.example.com",
        ] {
            assert!(is_valid_host(host.as_bytes()), "{host}");
        }
        for host in [
            "a b/c@d", "h/x", "user@h", "h,i", "h\u{e4}", "h:8x", "[::1", "h?x", "h#x", "[a/b]",
            "::1",
        ] {
            assert!(!is_valid_host(host.as_bytes()), "{host}");
        }
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
