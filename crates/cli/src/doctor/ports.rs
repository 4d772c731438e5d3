//! The default ports of `nearpath up`: free, used by a running gateway, or used by another program.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::time::Duration;

use http::Request;

use super::Check;
use crate::api::{ApiClient, GatewayTarget};

/// A gateway on this machine answers a health check much sooner.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

pub(super) fn checks() -> Vec<Check> {
    vec![
        check_port("port 8080", 8080, "--listen"),
        check_port("port 8082", 8082, "--admin-listen"),
    ]
}

fn check_port(name: &str, port: u16, option: &str) -> Check {
    let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    // Binding is the only sure test; the socket is closed at once and leaves no TIME_WAIT.
    match TcpListener::bind(addr) {
        Ok(_) => Check::ok(name, "free"),
        // nearpath itself on that port is the usual case, and no problem.
        Err(_) if is_gateway(addr) => Check::ok(name, "in use by a running gateway"),
        Err(error) => {
            let remedy =
                format!("stop the program that uses it, or choose another with `up {option}`");
            Check::warn(
                name,
                error.to_string(),
                "`nearpath up` does not start with its defaults",
                &remedy,
            )
        }
    }
}

fn is_gateway(addr: SocketAddr) -> bool {
    let base = format!("http://{addr}");
    let request = Request::builder().uri(format!("{base}/healthz")).body(());
    let target = GatewayTarget {
        base,
        tls: None,
        is_local: true,
        credentials: None,
        credential_origin: String::new(),
    };
    let response = request.map(|request| ApiClient::new(target).send(request, Some(PROBE_TIMEOUT)));
    matches!(response, Ok(Ok(response)) if response.status().is_success())
}
