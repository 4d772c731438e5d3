//! Configuration of a node.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use nearpath_kernel::bpf::Forwarder;
use nearpath_kernel::egress_listener::EgressListener;
use nearpath_kernel::hub_netns::HubNetns;
use nearpath_kernel::sandbox::IsolationLevel;
use nearpath_types::chain_status::EdgeStatus;
use nearpath_types::direct::DirectPeerNodes;
use nearpath_types::{FunctionId, InstanceId, InstanceResources, NodeName};
use tokio::sync::watch;

use crate::artifact::FolderLimit;
use crate::identity::IdentityService;
use crate::logs::log_files::LogFileBound;
use crate::logs::log_ring::LogBound;
use crate::run_lock::run_name;
use crate::virtual_switch::remote::StreamHook;

/// A hook that waits until no request of the gateway is on its way to a withdrawn instance.
///
/// The hook gets the version of a snapshot that was published, and an instance that it shows as
/// draining. Its future must end when every gateway thread uses that snapshot or a later one, and
/// the requests that picked the instance before have reached it. It should also give up after some
/// seconds. The instance is asked to stop only afterwards.
#[derive(Clone)]
pub struct SettleHook(Arc<dyn Fn(u64, InstanceId) -> BoxFuture<'static, ()> + Send + Sync>);

impl SettleHook {
    /// Calls `hook` for every wait.
    pub fn from_hook(
        hook: impl Fn(u64, InstanceId) -> BoxFuture<'static, ()> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(hook))
    }

    /// Waits for a fixed time, for a gateway that cannot report its state.
    pub fn after_delay(delay: Duration) -> Self {
        Self::from_hook(move |_, _| tokio::time::sleep(delay).boxed())
    }

    /// Waits until the gateway has let go of an instance that snapshot `version` withdraws.
    pub fn wait_settled(&self, version: u64, instance: InstanceId) -> BoxFuture<'static, ()> {
        (self.0)(version, instance)
    }
}

impl fmt::Debug for SettleHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SettleHook")
    }
}

/// Counts the answered calls of a function, so that the node can compare placements of a chain.
#[derive(Clone)]
pub struct CallCounter(Arc<dyn Fn(&FunctionId) -> u64 + Send + Sync>);

impl CallCounter {
    /// Counts with `hook`, which returns the calls so far that had a status below 400. It must not block.
    pub fn from_hook(hook: impl Fn(&FunctionId) -> u64 + Send + Sync + 'static) -> Self {
        Self(Arc::new(hook))
    }

    /// Returns the answered calls of a function so far.
    pub fn count(&self, function: &FunctionId) -> u64 {
        (self.0)(function)
    }
}

impl Default for CallCounter {
    /// Counts none.
    fn default() -> Self {
        Self::from_hook(|_| 0)
    }
}

impl fmt::Debug for CallCounter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CallCounter")
    }
}

/// Reads the calls that the gateway has served along edges.
#[derive(Clone)]
pub struct EdgeCallReader(Arc<dyn Fn() -> Vec<EdgeStatus> + Send + Sync>);

impl EdgeCallReader {
    /// Reads with `hook`, which returns one row for each edge with calls. It must not block.
    pub fn from_hook(hook: impl Fn() -> Vec<EdgeStatus> + Send + Sync + 'static) -> Self {
        Self(Arc::new(hook))
    }

    /// Returns the rows.
    pub(crate) fn read_rows(&self) -> Vec<EdgeStatus> {
        (self.0)()
    }
}

impl Default for EdgeCallReader {
    /// Reads none.
    fn default() -> Self {
        Self::from_hook(Vec::new)
    }
}

impl fmt::Debug for EdgeCallReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EdgeCallReader")
    }
}

/// Wakes functions that have no instance.
#[derive(Clone)]
pub struct WakeHook(Arc<dyn Fn(&FunctionId) + Send + Sync>);

impl WakeHook {
    /// Calls `hook` for a function that is called and asleep. It must not block, and may be called again
    /// for the same function.
    pub fn from_hook(hook: impl Fn(&FunctionId) + Send + Sync + 'static) -> Self {
        Self(Arc::new(hook))
    }

    /// Wakes a function.
    pub(crate) fn wake_function(&self, function: &FunctionId) {
        (self.0)(function);
    }
}

impl Default for WakeHook {
    /// Wakes none.
    fn default() -> Self {
        Self::from_hook(|_| ())
    }
}

impl fmt::Debug for WakeHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WakeHook")
    }
}

/// UDP ports of the machine for direct calls between nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectPorts {
    /// Address of the machine, or all of them.
    pub ip: IpAddr,
    /// Ports; each instance with direct calls takes one.
    pub ports: RangeInclusive<u16>,
}

/// Settings of a node.
#[derive(Debug, Clone)]
pub struct NodeConfig {
    /// Folder of function copies, ids and temporary files. The caller locks it against a second
    /// node.
    pub data_dir: PathBuf,
    /// Name of the node's cgroups, unique on the machine.
    pub node: String,
    /// Name of this node among the nodes of an application; `None`: there are no others, and every
    /// function runs here.
    pub member_name: Option<NodeName>,
    /// Number of this process's [`crate::RunLock`] on the data directory.
    pub run_number: usize,
    /// The `nearpath-watchdog` program.
    pub watchdog: PathBuf,
    /// Isolation of instances.
    pub isolation: IsolationLevel,
    /// The gateway's address in the node's network. Its /16 provides the instances' eIPs.
    pub gateway_ip: Ipv4Addr,
    /// URL of the gateway without a path: `gateway_url` in the environment of instances.
    pub gateway_url: String,
    /// The node's hub; required unless `isolation` is [`IsolationLevel::None`].
    pub hub: Option<Arc<HubNetns>>,
    /// Forwarder between instances and the gateway, which is already attached. `None` for a gateway
    /// inside the hub.
    pub forwarder: Option<Arc<Forwarder>>,
    /// Listener for destinations outside; without it instances reach none.
    pub egress_listener: Option<Arc<EgressListener>>,
    /// Folders of the host that every instance sees read-only, at the same paths.
    pub shared_dirs: Vec<PathBuf>,
    /// Issuer of instance identities, for callers over QUIC.
    pub identities: IdentityService,
    /// Ports for direct calls between nodes; `None`: calls go by the nodes.
    pub direct_ports: Option<DirectPorts>,
    /// Instances of other nodes that watchdogs may call.
    pub direct_peers: watch::Receiver<Arc<DirectPeerNodes>>,
    /// Wait before a withdrawn instance is asked to stop.
    pub settle: SettleHook,
    /// Counts the gateway's answered calls of a function.
    pub call_counter: CallCounter,
    /// Reads the calls that the gateway has served along edges.
    pub gateway_calls: EdgeCallReader,
    /// Wakes functions that are called at their virtual address.
    pub wake: WakeHook,
    /// Opens streams to functions that run on other nodes only.
    pub streams: StreamHook,
    /// Limits of the instances of functions that declare none.
    pub default_limits: InstanceResources,
    /// Maximum size of a function's folder.
    pub artifact_limit: FolderLimit,
    /// Maximum size of each function's log.
    pub log_bound: LogBound,
    /// Maximum size of the logs on disk; `None` keeps none there.
    pub log_files: Option<LogFileBound>,
    /// Program that is started with `instance-init` to become an instance; `None` for the running
    /// one.
    pub init_program: Option<PathBuf>,
}

/// Memory of an instance of a function that declares no limit: enough for the runtimes of common
/// languages, and a share of a small machine.
pub const DEFAULT_MEMORY: &str = "1Gi";
/// Processes and threads of such an instance: enough for a server, too few for a fork bomb.
pub const DEFAULT_MAX_PIDS: u64 = 4_096;

fn default_limits() -> InstanceResources {
    InstanceResources {
        memory: Some(DEFAULT_MEMORY.to_owned()),
        pids: Some(DEFAULT_MAX_PIDS),
        ..InstanceResources::default()
    }
}

impl NodeConfig {
    /// Returns a node without sandbox, named `local`, that gives the gateway 100 ms to apply a
    /// snapshot.
    pub fn new(data_dir: PathBuf, watchdog: PathBuf) -> Self {
        Self {
            data_dir,
            node: "local".to_owned(),
            member_name: None,
            run_number: 0,
            watchdog,
            isolation: IsolationLevel::None,
            gateway_ip: Ipv4Addr::new(10, 62, 0, 1),
            gateway_url: "http://gateway:8080".to_owned(),
            hub: None,
            forwarder: None,
            egress_listener: None,
            shared_dirs: Vec::new(),
            identities: IdentityService::default(),
            direct_ports: None,
            // Without a sender there never are any.
            direct_peers: watch::channel(Arc::default()).1,
            // Longer than the gateway's threads need to apply a snapshot.
            settle: SettleHook::after_delay(Duration::from_millis(100)),
            call_counter: CallCounter::default(),
            gateway_calls: EdgeCallReader::default(),
            wake: WakeHook::default(),
            streams: StreamHook::default(),
            default_limits: default_limits(),
            artifact_limit: FolderLimit::default(),
            log_bound: LogBound::default(),
            log_files: None,
            init_program: None,
        }
    }

    /// Returns a folder that belongs to this run only.
    pub(crate) fn run_path(&self, folder: &str) -> PathBuf {
        self.data_dir.join(run_name(folder, self.run_number))
    }

    /// Returns the address of the gateway in the node's network, with the port of `gateway_url`: 80 if it
    /// has none.
    pub(crate) fn gateway_addr(&self) -> SocketAddr {
        let port = self
            .gateway_url
            .rsplit_once(':')
            .and_then(|(_, port)| port.parse().ok())
            .unwrap_or(80);
        (self.gateway_ip, port).into()
    }
}

/// Reasons why a node does not start. The texts are for the operator.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The data directory is unusable.
    #[error("cannot use {path}: {error}; check its owner and free space", path = path.display())]
    DataDir {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        error: std::io::Error,
    },
    /// The launcher's thread did not start.
    #[error("cannot start the instance launcher: {0}")]
    Launcher(std::io::Error),
    /// Leftovers of an earlier run could not be removed.
    #[error("cannot remove leftovers of an earlier run: {0}")]
    Sweep(std::io::Error),
    /// The egress pool did not start.
    #[error("cannot start the egress pool: {0}")]
    EgressPool(std::io::Error),
    /// The isolation needs a hub.
    #[error("isolation {0:?} needs a hub: create one, or run without a sandbox")]
    NoHub(IsolationLevel),
}
