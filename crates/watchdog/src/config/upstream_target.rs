//! Address of the tenant's HTTP server. Names are not resolved: a static program has no resolver,
//! and the server is local.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use http::Uri;

/// HTTP version of the tenant's server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UpstreamProtocol {
    /// h2c for gRPC that came in over HTTP/2, else HTTP/1.1.
    Auto,
    Http1,
    H2c,
}

impl UpstreamProtocol {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        match text.trim() {
            "auto" => Ok(Self::Auto),
            "http1" => Ok(Self::Http1),
            "h2c" => Ok(Self::H2c),
            other => Err(format!(
                "invalid protocol {other:?}: expected auto, http1 or h2c"
            )),
        }
    }
}

/// Addresses to try in order, and the path in front of every request's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UpstreamTarget {
    pub(crate) addrs: Vec<SocketAddr>,
    /// Without a slash at its end; usually empty.
    pub(crate) base_path: String,
}

impl UpstreamTarget {
    /// Reads `http://ADDRESS[:PORT][/PATH]`. `localhost` is 127.0.0.1, then ::1.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let with_scheme = if text.contains("://") {
            text.to_owned()
        } else {
            format!("http://{text}")
        };
        let uri: Uri = with_scheme
            .parse()
            .map_err(|fault| format!("invalid URL {text:?}: {fault}"))?;
        if uri.scheme_str() != Some("http") {
            return Err(format!(
                "invalid URL {text:?}: expected http://, the only scheme inside an instance"
            ));
        }
        let host = uri.host().unwrap_or_default();
        let port = uri.port_u16().unwrap_or(80);
        let addrs = parse_host(host).ok_or_else(|| {
            format!("invalid URL {text:?}: {host:?} is neither an IP address nor localhost")
        })?;
        let base_path = uri.path().trim_end_matches('/').to_owned();
        Ok(Self {
            addrs: addrs
                .into_iter()
                .map(|host| SocketAddr::new(host, port))
                .collect(),
            base_path,
        })
    }
}

fn parse_host(host: &str) -> Option<Vec<IpAddr>> {
    if host.eq_ignore_ascii_case("localhost") {
        // IPv4 first: many servers listen on nothing else.
        return Some(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]);
    }
    // A URI has an IPv6 address in brackets (RFC 3986 section 3.2.2).
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    bare.parse().ok().map(|addr| vec![addr])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_localhost_and_paths() {
        let check = |text: &str, addr: &str, base: &str| {
            let target = UpstreamTarget::parse(text).unwrap();
            assert_eq!(
                (
                    target.addrs[0].to_string().as_str(),
                    target.base_path.as_str()
                ),
                (addr, base),
                "{text}"
            );
        };
        check("http://127.0.0.1:5000", "127.0.0.1:5000", "");
        check("127.0.0.1:5000", "127.0.0.1:5000", "");
        check("http://localhost:3000/api/", "127.0.0.1:3000", "/api");
        check("http://[::1]:9", "[::1]:9", "");
        check("http://127.0.0.1", "127.0.0.1:80", "");
        assert_eq!(
            UpstreamTarget::parse("http://localhost:1")
                .unwrap()
                .addrs
                .len(),
            2
        );
    }

    #[test]
    fn unreachable_targets_are_refused() {
        for bad in [
            "https://127.0.0.1",
            "http://example.com",
            "http://",
            "::",
            "unix:///x",
            "http://a b",
        ] {
            assert!(UpstreamTarget::parse(bad).is_err(), "{bad}");
        }
    }
}
