//! The ports that `nearpath up` listens on by default: free, held by a running gateway, or held by somebody else.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::time::Duration;

use http::Request;

use super::Check;
use crate::api::{Client, Target};

pub(super) fn checks() -> Vec<Check> {
    vec![check("port 8080", 8080, "--listen"), check("port 8082", 8082, "--admin-listen")]
}

fn check(name: &str, port: u16, option: &str) -> Check {
    let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    match TcpListener::bind(addr) {
        Ok(_) => Check::ok(name, "free"),
        Err(_) if is_gateway(addr) => Check::ok(name, "in use by a gateway that answers"),
        Err(error) => {
            let advice = format!("stop what holds it, or choose another with `up {option}`");
            Check::warn(name, error.to_string(), "`nearpath up` does not start with its defaults", &advice)
        }
    }
}

fn is_gateway(addr: SocketAddr) -> bool {
    let base = format!("http://{addr}");
    let request = Request::builder().uri(format!("{base}/healthz")).body(());
    let client = Client::new(Target { base, local: true, credentials: None, origin: String::new() });
    let answer = request.map(|request| client.send(request, Some(Duration::from_secs(2))));
    matches!(answer, Ok(Ok(response)) if response.status().is_success())
}
