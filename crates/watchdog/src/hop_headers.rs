//! Headers that end at a hop (RFC 9110 section 7.6.1), taken out before a message goes on.

use http::header::{
    CONNECTION, EXPECT, HeaderMap, HeaderName, HeaderValue, PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING, UPGRADE,
};

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
/// What `Connection` may list without making that header vanish: framing is hyper's, and `EgressHost` is the caller's.
const PROTECTED_HEADERS: &[&str] = &[
    "close",
    "keep-alive",
    "upgrade",
    "te",
    "trailer",
    "content-length",
    "host",
];

/// Takes them out. `TE: trailers` stays, because gRPC needs it end to end; with `keep_upgrade`, the upgrade stays too.
pub fn strip_hop_headers(headers: &mut HeaderMap, keep_upgrade: bool) {
    let upgrade = headers.remove(UPGRADE).filter(|_| keep_upgrade);
    if headers.contains_key(CONNECTION) {
        for name in connection_headers(headers) {
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
        EXPECT,
    ] {
        headers.remove(name);
    }
    let trailers = |te: HeaderValue| {
        te.to_str()
            .is_ok_and(|te| te.to_ascii_lowercase().contains("trailers"))
    };
    if headers.remove(TE).is_some_and(trailers) {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    if let Some(protocol) = upgrade {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, protocol);
    }
}

fn connection_headers(headers: &HeaderMap) -> Vec<HeaderName> {
    let lines = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|line| line.to_str().ok());
    let names = lines
        .flat_map(|line| line.split(','))
        .map(|word| word.trim().to_ascii_lowercase());
    names
        .filter(|word| !PROTECTED_HEADERS.contains(&word.as_str()))
        .filter_map(|word| word.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header_map(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &'static str)| {
            (name.parse().unwrap(), HeaderValue::from_static(value))
        };
        let mut map = HeaderMap::new();
        for (name, value) in pairs.iter().map(pair) {
            let _: bool = map.append::<HeaderName>(name, value);
        }
        map
    }

    #[test]
    fn only_end_to_end_headers_stay() {
        let mut map = header_map(&[
            ("connection", "keep-alive, X-Hop"),
            ("connection", "x-hop-too"),
            ("x-hop", "1"),
            ("x-hop-too", "1"),
            ("keep-alive", "timeout=5"),
            ("transfer-encoding", "chunked"),
            ("te", "gzip, trailers"),
            ("upgrade", "h2c"),
            ("expect", "100-continue"),
            ("x-end", "1"),
        ]);
        strip_hop_headers(&mut map, false);
        let mut left: Vec<_> = map.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["te", "x-end"]);
        assert_eq!(map["te"], "trailers");
    }

    #[test]
    fn an_upgrade_is_kept_where_it_is_wanted() {
        let mut map = header_map(&[("connection", "Upgrade"), ("upgrade", "websocket")]);
        strip_hop_headers(&mut map, true);
        assert_eq!(
            (&map["connection"], &map["upgrade"]),
            (&"upgrade".parse().unwrap(), &"websocket".parse().unwrap())
        );
    }
}
