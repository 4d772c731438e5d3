//! Headers that end at a hop (RFC 9110 section 7.6.1). The pool is not a proxy that clients know of: what is meant for proxies passes.

use http::header::{CONNECTION, HeaderName, HeaderValue, UPGRADE};
use http::{HeaderMap, Method};

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
/// What `Connection` may list without naming a header that ends here, or whose loss would change what a message means.
const KEPT: [&str; 7] = ["close", "keep-alive", "upgrade", "te", "content-length", "transfer-encoding", "host"];

/// Takes out what is meant for one connection only; the upgrade stays where one is asked for.
pub(super) fn strip(headers: &mut HeaderMap, upgrade: bool) {
    let upgrade = headers.remove(UPGRADE).filter(|_| upgrade);
    for name in listed(headers) {
        headers.remove(name);
    }
    headers.remove(CONNECTION);
    headers.remove(KEEP_ALIVE);
    if let Some(protocol) = upgrade {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, protocol);
    }
}

fn listed(headers: &HeaderMap) -> Vec<HeaderName> {
    words(headers)
        .filter(|word| !KEPT.iter().any(|kept| word.eq_ignore_ascii_case(kept)))
        .filter_map(|word| word.parse().ok())
        .collect()
}

fn words(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let lines = headers.get_all(CONNECTION).iter().filter_map(|line| line.to_str().ok());
    lines.flat_map(|line| line.split(',')).map(str::trim)
}

/// Whether a request wants to leave HTTP.
pub(super) fn upgrades(method: &Method, headers: &HeaderMap) -> bool {
    method == Method::CONNECT
        || (headers.contains_key(UPGRADE) && words(headers).any(|word| word.eq_ignore_ascii_case("upgrade")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(all: &[(&'static str, &'static str)]) -> HeaderMap {
        all.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn what_connection_lists_ends_here_but_not_what_gives_a_message_its_meaning() {
        let mut all = headers(&[
            ("connection", "close, X-Mine, host"),
            ("x-mine", "1"),
            ("host", "h"),
            ("keep-alive", "5"),
            ("proxy-authorization", "p"),
        ]);
        strip(&mut all, false);
        assert_eq!(all, headers(&[("host", "h"), ("proxy-authorization", "p")]));
    }

    #[test]
    fn an_upgrade_stays_where_it_is_asked_for() {
        let asks = [("connection", "keep-alive, Upgrade"), ("upgrade", "websocket")];
        assert!(upgrades(&Method::GET, &headers(&asks)) && !upgrades(&Method::GET, &headers(&asks[1..])));
        let mut all = headers(&asks);
        strip(&mut all, true);
        assert_eq!(all, headers(&[("connection", "upgrade"), ("upgrade", "websocket")]));
    }
}
