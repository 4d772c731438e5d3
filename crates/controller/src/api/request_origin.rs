//! Origin of requests: protects against other web sites that send commands through an
//! administrator's browser.
//!
//! A browser sends requests for any page, with credentials that it has stored. A page cannot forge
//! `Origin` (RFC 6454), `Sec-Fetch-Site` (W3C Fetch Metadata) and `Host`. The last one matters
//! without a password: a page whose host name is made to point to this machine (DNS rebinding) has
//! the same origin, but keeps its own name.

use std::net::{Ipv4Addr, Ipv6Addr};

use http::uri::Authority;
use http::{HeaderMap, HeaderName, Uri, header};

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Reasons to refuse a browser's request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ForeignRequest {
    /// The page belongs to another server.
    #[error(
        "a page of another web site sent this request: call the API from a program, such as nearpath or curl, or from a \
         page under the gateway's own address"
    )]
    ForeignPage,
    /// Without a password, the host name is not this machine's own.
    #[error(
        "without a password the API answers under a loopback address only: ask http://127.0.0.1 or http://localhost with \
         the gateway's port, or start the gateway without --insecure"
    )]
    ForeignHost,
}

/// Refuses requests that another site's page may have sent. Programs send neither `Origin` nor
/// `Sec-Fetch-Site` and pass.
pub(crate) fn check_origin(uri: &Uri, headers: &HeaderMap) -> Result<(), ForeignRequest> {
    let is_own_origin = |origin: &[u8]| {
        let page = ["http://", "https://"]
            .iter()
            .find_map(|scheme| origin.strip_prefix(scheme.as_bytes()));
        let is_origin_host = |host: &[u8]| page.is_some_and(|page| host.eq_ignore_ascii_case(page));
        let mut hosts = request_hosts(uri, headers);
        // At least one host, and all of them: two different ones would let a page pick the matching
        // one.
        hosts.next().is_some_and(is_origin_host) && hosts.all(is_origin_host)
    };
    let origins_are_own = headers
        .get_all(header::ORIGIN)
        .iter()
        .all(|origin| is_own_origin(origin.as_bytes()));
    // `same-site` is refused too: a sibling host name may belong to somebody else.
    let is_foreign_site = |site: &[u8]| site == b"cross-site" || site == b"same-site";
    let is_sent_by_foreign_site = headers
        .get_all(SEC_FETCH_SITE)
        .iter()
        .any(|site| is_foreign_site(site.as_bytes()));
    if origins_are_own && !is_sent_by_foreign_site {
        Ok(())
    } else {
        Err(ForeignRequest::ForeignPage)
    }
}

/// Refuses host names that are not this machine's own. A request without any (HTTP/1.0) does not
/// come from a browser.
pub(crate) fn check_host(uri: &Uri, headers: &HeaderMap) -> Result<(), ForeignRequest> {
    if request_hosts(uri, headers).all(is_loopback) {
        Ok(())
    } else {
        Err(ForeignRequest::ForeignHost)
    }
}

/// All host names of a request: `:authority` or an absolute target, and `Host`.
fn request_hosts<'a>(uri: &'a Uri, headers: &'a HeaderMap) -> impl Iterator<Item = &'a [u8]> {
    let authority = uri
        .authority()
        .map(|authority| authority.as_str().as_bytes());
    authority.into_iter().chain(
        headers
            .get_all(header::HOST)
            .iter()
            .map(|host| host.as_bytes()),
    )
}

/// True for `localhost`, 127.0.0.0/8 or `[::1]`, with or without a port.
pub fn is_loopback(host: &[u8]) -> bool {
    let Ok(authority) = Authority::try_from(host) else {
        return false;
    };
    // `evil.example@localhost` has the host `localhost`, but no browser sends user information in
    // `Host`.
    if authority.as_str().contains('@') {
        return false;
    }
    let name = authority.host();
    let v6 = || {
        name.strip_prefix('[')?
            .strip_suffix(']')?
            .parse::<Ipv6Addr>()
            .ok()
    };
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<Ipv4Addr>().is_ok_and(|ip| ip.is_loopback())
        || v6().is_some_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;
    use proptest::prelude::*;

    fn header_map(lines: &[(&'static str, &str)]) -> HeaderMap {
        lines
            .iter()
            .map(|(name, value)| {
                (
                    HeaderName::from_static(name),
                    HeaderValue::from_str(value).unwrap(),
                )
            })
            .collect()
    }

    #[test]
    fn only_loopback_names_are_loopback() {
        for own in [
            "localhost",
            "LocalHost:8080",
            "127.0.0.1",
            "127.0.0.1:8080",
            "127.8.9.10:1",
            "[::1]",
            "[::1]:8080",
        ] {
            assert!(is_loopback(own.as_bytes()), "{own}");
        }
        for other in [
            "",
            ":8080",
            "evil.example",
            "evil.example:8080",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "0.0.0.0",
            "10.0.0.1",
            "[::]",
            "[::1",
            "::1",
            "localhost@evil.example",
            "evil.example@localhost",
            "localhost/",
            "ä",
        ] {
            assert!(!is_loopback(other.as_bytes()), "{other}");
        }
    }

    #[test]
    fn only_pages_of_the_gateway_may_call_the_api() {
        let check = |lines: &[(&'static str, &str)]| {
            check_origin(&Uri::from_static("/system/info"), &header_map(lines))
        };
        let host = ("host", "gw.example:8080");
        for own in [
            &[host] as &[_],
            &[
                host,
                ("origin", "http://gw.example:8080"),
                ("sec-fetch-site", "same-origin"),
            ],
            &[host, ("origin", "https://GW.example:8080")],
            &[host, ("sec-fetch-site", "none")],
        ] {
            assert_eq!(check(own), Ok(()), "{own:?}");
        }
        for other in [
            ("origin", "http://evil.example"),
            ("origin", "http://gw.example"),
            ("origin", "http://gw.example:8081"),
            ("origin", "null"),
            ("origin", ""),
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-site", "same-site"),
        ] {
            assert_eq!(
                check(&[host, other]),
                Err(ForeignRequest::ForeignPage),
                "{other:?}"
            );
        }
        assert_eq!(
            check(&[("origin", "http://evil.example")]),
            Err(ForeignRequest::ForeignPage),
            "no name is nobody's own"
        );
    }

    #[test]
    fn the_host_is_checked_in_the_target_and_the_header() {
        let rebound = Uri::from_static("http://evil.example/system/functions");
        assert_eq!(
            check_host(&rebound, &header_map(&[("host", "localhost")])),
            Err(ForeignRequest::ForeignHost)
        );
        let plain = Uri::from_static("/system/functions");
        assert_eq!(
            check_host(&plain, &header_map(&[("host", "evil.example")])),
            Err(ForeignRequest::ForeignHost)
        );
        assert_eq!(
            check_host(&plain, &header_map(&[("host", "localhost:8080")])),
            Ok(())
        );
        assert_eq!(check_host(&plain, &HeaderMap::new()), Ok(()));
    }

    proptest! {
        #[test]
        fn any_host_is_answered(host in prop::collection::vec(any::<u8>(), 0..40)) {
            let _ = is_loopback(&host);
        }
    }
}
