//! Settings of a server: defaults are filled in, contradictions are gone.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use nearpath_controller::AuthMode;
use nearpath_gateway::GatewaySettings;
use nearpath_node::logs::log_files::LogFileBound;
use nearpath_source::SourceSettings;
use nearpath_types::{InstanceResources, NodeName};

use crate::cpu_quota::CpuQuota;
use crate::devices::DeviceSettings;

/// Everything a server is built from.
#[derive(Debug, Clone)]
pub struct ServerSettings {
    /// Absolute path: instances have another working directory.
    pub data_dir: PathBuf,
    /// Take over from the process that owns the data directory.
    pub take_over: bool,
    /// Public address.
    pub listen: SocketAddr,
    /// Public address with TLS.
    pub tls: Option<TlsSettings>,
    /// Address of `/metrics` and `/healthz`.
    pub admin_listen: SocketAddr,
    /// Credentials of the administrator.
    pub auth: AuthMode,
    /// Run functions in namespaces.
    pub sandbox: bool,
    /// Gateway threads.
    pub threads: NonZeroUsize,
    /// CPU that the gateway's threads may use together.
    pub gateway_cpu: CpuQuota,
    /// Packet path between gateway and instances.
    pub forward: ForwardMode,
    /// File of the access log; `-` is standard output.
    pub access_log: Option<PathBuf>,
    /// Maximum size of functions' logs on disk; `None` keeps none there.
    pub log_files: Option<LogFileBound>,
    /// Lifetime of the certificates of gateway and instances.
    pub certificate_lifetime: Duration,
    /// The `nearpath-watchdog` program.
    pub watchdog: PathBuf,
    /// Limits of functions that declare none.
    pub default_limits: InstanceResources,
    /// Folders of this machine that every function sees read-only.
    pub shared_dirs: Vec<PathBuf>,
    /// Limits of callers' connections.
    pub gateway: GatewaySettings,
    /// Listeners for device protocols.
    pub devices: DeviceSettings,
    /// Folder that declares the state of this node, one of several; `None`: the API changes the
    /// state of the only node.
    pub source: Option<SourceSettings>,
    /// Port for other nodes; `None`: this node neither calls nor serves others.
    pub peers: Option<PeerSettings>,
}

/// The port for other nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerSettings {
    /// Name of this node.
    pub node: NodeName,
    /// Address, for TCP and for UDP.
    pub listen: SocketAddr,
    /// Folder with `node.crt`, `node.key` and `ca.crt`.
    pub certificates: PathBuf,
    /// UDP ports at which watchdogs of other nodes call instances directly; `None`: all calls go by
    /// the nodes.
    pub direct_ports: Option<RangeInclusive<u16>>,
}

impl ServerSettings {
    /// Name of this node among others, if there are others.
    pub(crate) fn member_name(&self) -> Option<&NodeName> {
        self.source.as_ref().map(|source| &source.node)
    }
}

/// The public listener with TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsSettings {
    /// Address, for TCP and for UDP.
    pub listen: SocketAddr,
    /// Certificate chain, PEM.
    pub cert: PathBuf,
    /// Private key, PEM.
    pub key: PathBuf,
    /// Serve HTTP/3 on the same port.
    pub http3: bool,
}

/// Packet path between the gateway and instances.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ForwardMode {
    /// Both are ends of one veth pair.
    #[default]
    None,
    /// `bpf/tc_forward.c` moves packets between two pairs.
    Tc,
}

/// Processors that this process may use.
pub(crate) fn available_cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
