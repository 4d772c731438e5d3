//! What each part of the house is built with, from the plan.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use nearpath_controller::Auth;
use nearpath_daemon::metrics::Registry;
use nearpath_gateway::Gateway;
use nearpath_kernel::sandbox::Isolation;
use nearpath_node::Settle;

use super::desk::FrontDesk;
use super::identity;
use super::network::{GATEWAY_IP, INNER_PORT, Network};
use super::plan::{Plan, UpError};

pub(super) fn gateway(plan: &Plan, desk: Arc<FrontDesk>, registry: &Registry) -> Result<Gateway, UpError> {
    let gateway = Gateway::new(plan.gateway.clone(), desk, registry);
    let Some(path) = &plan.access_log else { return Ok(gateway) };
    let out = access_log(path).map_err(UpError::part("--access-log"))?;
    gateway.with_access_log(out).map_err(UpError::part("--access-log"))
}

fn access_log(path: &Path) -> io::Result<Box<dyn io::Write + Send>> {
    if path == Path::new("-") {
        return Ok(Box::new(io::stdout()));
    }
    let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
    file.map(|file| Box::new(file) as Box<dyn io::Write + Send>)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

pub(super) fn node_config(
    plan: &Plan,
    network: Option<&Network>,
    settle: Settle,
) -> Result<nearpath_node::Config, UpError> {
    let node = nearpath_node::node_id(&plan.data_dir).map_err(UpError::part("--data-dir"))?;
    let config = nearpath_node::Config::new(plan.data_dir.clone(), plan.watchdog.clone());
    let (isolation, gateway_ip, gateway_url) = (plan.isolation, GATEWAY_IP, gateway_url(plan));
    let (switch, forwarder) = (network.map(|network| network.switch.clone()), network.and_then(Network::forwarder));
    let doorway = network.map(|network| network.doorway.clone());
    Ok(nearpath_node::Config { node, isolation, gateway_ip, gateway_url, switch, forwarder, doorway, settle, ..config })
}

/// Who says who instances are. Without a network of its own the gateway calls them on loopback.
pub(super) fn identity_terms(plan: &Plan, node: &nearpath_node::Config) -> identity::Terms {
    let from = match plan.isolation {
        Isolation::None => Ipv4Addr::LOCALHOST,
        Isolation::Root | Isolation::UserNamespace => GATEWAY_IP,
    };
    identity::Terms { node: node.node.clone(), from: from.into(), lifetime: plan.certificate_lifetime }
}

/// Where instances call each other: at the inner listener by name or, without a network of their own, where everybody does.
fn gateway_url(plan: &Plan) -> String {
    match plan.isolation {
        Isolation::None => format!("http://{}", reachable(plan.listen)),
        Isolation::Root | Isolation::UserNamespace => format!("http://gateway:{INNER_PORT}"),
    }
}

/// An address to call from this machine: one that listens everywhere does on loopback too.
fn reachable(listen: SocketAddr) -> SocketAddr {
    match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => (Ipv4Addr::LOCALHOST, listen.port()).into(),
        IpAddr::V6(ip) if ip.is_unspecified() => (Ipv6Addr::LOCALHOST, listen.port()).into(),
        _ => listen,
    }
}

pub(super) fn controller_config(plan: &Plan) -> nearpath_controller::Config {
    let auth = match (&plan.secret_mount_path, plan.insecure) {
        (_, true) => Auth::Off,
        (Some(folder), false) => Auth::Files(folder.clone()),
        (None, false) => Auth::Generated,
    };
    nearpath_controller::Config { auth, ..nearpath_controller::Config::new(&plan.data_dir) }
}
