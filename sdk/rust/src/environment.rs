//! Environment of a function: dispatch socket, gateway, port.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

/// Port of a function's server where nothing names another.
const DEFAULT_PORT: u16 = 5000;

/// Environment of a function. Tests and programs that host several functions create their own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Environment {
    /// The dispatch socket, `NEARPATH_DISPATCH`; none outside a domain.
    pub dispatch_socket: Option<PathBuf>,
    /// Where calls go over HTTP: `NEARPATH_GATEWAY`, `gateway_url`, port 8080 of `gateway_hostname`, `OPENFAAS_URL` or `gateway_url`,
    /// whichever is set first; else `http://gateway:8080`.
    pub gateway: String,
    /// Where the function listens for HTTP: `upstream_url`, or every address at port `DEFAULT_PORT`, or at 5000.
    pub listen: SocketAddr,
}

impl Environment {
    /// That of this process.
    pub fn from_process() -> Self {
        Self::from_variables(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
    }

    fn from_variables(get: impl Fn(&str) -> Option<String>) -> Self {
        Self {
            dispatch_socket: get("NEARPATH_DISPATCH").map(PathBuf::from),
            gateway: gateway_url(&get),
            listen: listen_address(&get),
        }
    }
}

fn gateway_url(get: &impl Fn(&str) -> Option<String>) -> String {
    let of_host = || get("gateway_hostname").map(|host| format!("http://{host}:8080"));
    let url = get("NEARPATH_GATEWAY")
        .or_else(|| get("gateway_url"))
        .or_else(of_host);
    let url = url
        .or_else(|| get("OPENFAAS_URL"))
        .or_else(|| get("gateway"));
    let url = url.unwrap_or_else(|| "http://gateway:8080".to_owned());
    let scheme = if url.contains("://") { "" } else { "http://" };
    format!("{scheme}{}", url.trim_end_matches('/'))
}

/// `upstream_url` is where the watchdog will look for the function; `DEFAULT_PORT` is the habit of platforms without a watchdog.
fn listen_address(get: &impl Fn(&str) -> Option<String>) -> SocketAddr {
    let port = get("PORT").and_then(|port| port.parse().ok());
    match get("upstream_url").and_then(|url| url.parse::<http::Uri>().ok()) {
        Some(url) => {
            let host = url
                .host()
                .and_then(|host| host.parse::<IpAddr>().ok())
                .unwrap_or(Ipv4Addr::LOCALHOST.into());
            SocketAddr::new(host, url.port_u16().or(port).unwrap_or(80))
        }
        None => SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port.unwrap_or(DEFAULT_PORT)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_pairs(pairs: &[(&str, &str)]) -> Environment {
        Environment::from_variables(|name| {
            pairs
                .iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn defaults_apply_without_variables() {
        let plain = read_pairs(&[]);
        assert_eq!(
            (plain.dispatch_socket, &*plain.gateway),
            (None, "http://gateway:8080")
        );
        assert_eq!(plain.listen, "0.0.0.0:5000".parse().unwrap());
    }

    #[test]
    fn the_first_variable_that_names_the_gateway_counts() {
        assert_eq!(
            read_pairs(&[("gateway_hostname", "g"), ("gateway_url", "http://u/")]).gateway,
            "http://u"
        );
        assert_eq!(
            read_pairs(&[("gateway_hostname", "g")]).gateway,
            "http://g:8080"
        );
        assert_eq!(
            read_pairs(&[
                ("NEARPATH_GATEWAY", "http://n:1"),
                ("gateway_url", "http://u/")
            ])
            .gateway,
            "http://n:1"
        );
        assert_eq!(
            read_pairs(&[
                ("OPENFAAS_URL", "http://o:31112/"),
                ("gateway", "http://g:1")
            ])
            .gateway,
            "http://o:31112"
        );
        assert_eq!(
            read_pairs(&[("gateway", "http://gateway.openfaas:8080")]).gateway,
            "http://gateway.openfaas:8080"
        );
        assert_eq!(
            read_pairs(&[("gateway", "gateway.openfaas:8080/")]).gateway,
            "http://gateway.openfaas:8080"
        );
    }

    #[test]
    fn the_listen_address_is_the_upstream_url_of_the_watchdog() {
        let upstream = ("upstream_url", "http://127.0.0.1:4002");
        assert_eq!(
            read_pairs(&[upstream]).listen,
            "127.0.0.1:4002".parse().unwrap()
        );
        assert_eq!(
            read_pairs(&[("PORT", "9")]).listen,
            "0.0.0.0:9".parse().unwrap()
        );
        assert_eq!(
            read_pairs(&[("PORT", "9"), upstream]).listen,
            "127.0.0.1:4002".parse().unwrap()
        );
        assert_eq!(
            read_pairs(&[("upstream_url", "http://localhost:7")]).listen,
            "127.0.0.1:7".parse().unwrap()
        );
    }
}
