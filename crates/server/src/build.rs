//! The configuration of each component, from the settings.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use nearpath_ca::IssuerSettings;
use nearpath_daemon::metrics::MetricsRegistry;
use nearpath_gateway::{Gateway, GatewayControl, GatewaySettings};
use nearpath_kernel::sandbox::IsolationLevel;
use nearpath_node::{CallCounter, DirectPorts, SettleHook, WakeHook};

use crate::error::StartError;
use crate::network::{GATEWAY_IP, INNER_PORT, Network};
use crate::settings::ServerSettings;

/// Builds the gateway; it serves nothing yet.
pub(crate) fn gateway(
    settings: &ServerSettings,
    control: Arc<dyn GatewayControl>,
    registry: &MetricsRegistry,
) -> Result<Gateway, StartError> {
    let gateway_settings = GatewaySettings {
        spool_dir: Some(settings.data_dir.join("spool")),
        node: settings.member_name().cloned(),
        ..settings.gateway.clone()
    };
    let gateway = Gateway::new(gateway_settings, control, registry);
    let Some(path) = &settings.access_log else {
        return Ok(gateway);
    };
    let log = open_access_log(path).map_err(StartError::component("--access-log"))?;
    gateway
        .with_access_log(log)
        .map_err(StartError::component("--access-log"))
}

fn open_access_log(path: &Path) -> io::Result<Box<dyn io::Write + Send>> {
    if path == Path::new("-") {
        return Ok(Box::new(io::stdout()));
    }
    let file = std::fs::OpenOptions::new()
        .create(true)
        // Two processes write the same file during a handover: O_APPEND keeps both from
        // overwriting.
        .append(true)
        .open(path);
    file.map(|file| Box::new(file) as Box<dyn io::Write + Send>)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

/// Configures the node.
pub(crate) fn node_config(
    settings: &ServerSettings,
    isolation: IsolationLevel,
    network: Option<&Network>,
    (settle, call_counter, wake): (SettleHook, CallCounter, WakeHook),
) -> Result<nearpath_node::NodeConfig, StartError> {
    let node =
        nearpath_node::node_id(&settings.data_dir).map_err(StartError::component("--data-dir"))?;
    let config =
        nearpath_node::NodeConfig::new(settings.data_dir.clone(), settings.watchdog.clone());
    let (gateway_ip, gateway_url) = (GATEWAY_IP, gateway_url(settings, isolation));
    let (hub, forwarder) = (
        network.map(|network| network.hub.clone()),
        network.and_then(Network::forwarder),
    );
    let egress_listener = network.map(|network| network.egress_listener.clone());
    Ok(nearpath_node::NodeConfig {
        node,
        member_name: settings.member_name().cloned(),
        isolation,
        gateway_ip,
        gateway_url,
        hub,
        forwarder,
        egress_listener,
        default_limits: settings.default_limits.clone(),
        shared_dirs: settings.shared_dirs.clone(),
        log_files: settings.log_files,
        settle,
        call_counter,
        wake,
        direct_ports: direct_ports(settings),
        ..config
    })
}

/// Returns the ports for direct calls between nodes, if they are to be used.
pub(crate) fn direct_ports(settings: &ServerSettings) -> Option<DirectPorts> {
    let peers = settings.peers.as_ref()?;
    Some(DirectPorts {
        ip: peers.listen.ip(),
        ports: peers.direct_ports.clone()?,
    })
}

/// Configures the issuer of certificates.
pub(crate) fn issuer_settings(
    settings: &ServerSettings,
    isolation: IsolationLevel,
    node: &str,
) -> IssuerSettings {
    let gateway_ip = match isolation {
        // Without a network of its own, the gateway calls instances on loopback.
        IsolationLevel::None => Ipv4Addr::LOCALHOST,
        IsolationLevel::Root | IsolationLevel::UserNamespace => GATEWAY_IP,
    };
    IssuerSettings {
        node: node.to_owned(),
        member_name: settings.member_name().cloned(),
        gateway_ip: gateway_ip.into(),
        lifetime: settings.certificate_lifetime,
    }
}

/// Base URL at which instances call each other.
fn gateway_url(settings: &ServerSettings, isolation: IsolationLevel) -> String {
    match isolation {
        IsolationLevel::None => format!("http://{}", reachable_address(settings.listen)),
        IsolationLevel::Root | IsolationLevel::UserNamespace => {
            format!("http://gateway:{INNER_PORT}")
        }
    }
}

/// An address to call from this machine: a wildcard listener is reachable on loopback.
fn reachable_address(listen: SocketAddr) -> SocketAddr {
    match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => (Ipv4Addr::LOCALHOST, listen.port()).into(),
        IpAddr::V6(ip) if ip.is_unspecified() => (Ipv6Addr::LOCALHOST, listen.port()).into(),
        _ => listen,
    }
}

/// Configures the controller.
pub(crate) fn controller_config(
    settings: &ServerSettings,
) -> nearpath_controller::ControllerConfig {
    nearpath_controller::ControllerConfig {
        auth: settings.auth.clone(),
        node_name: settings.member_name().cloned(),
        declared_in: settings.source.as_ref().map(|source| source.folder.clone()),
        ..nearpath_controller::ControllerConfig::new(&settings.data_dir)
    }
}
