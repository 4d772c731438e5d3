//! What a node is told at its start.

use std::fmt;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use nearpath_kernel::bpf::Forwarder;
use nearpath_kernel::doorway::Doorway;
use nearpath_kernel::sandbox::Isolation;
use nearpath_kernel::switch::Switch;

use crate::artifact::Limit;
use crate::identities::Identities;
use crate::logs::ring::Bound;
use crate::run::named;

/// How the node learns that nobody sends new requests to the instances that a snapshot withdrew.
///
/// Called with a snapshot's version after that snapshot was published. The future must end when every thread of the
/// gateway works with that snapshot or a later one, so that no thread still picks an instance from an older one; it
/// should also be given up after some seconds. Only then is an instance told to stop.
#[derive(Clone)]
pub struct Settle(Arc<dyn Fn(u64) -> BoxFuture<'static, ()> + Send + Sync>);

impl Settle {
    /// Asks `hook` each time.
    pub fn when(hook: impl Fn(u64) -> BoxFuture<'static, ()> + Send + Sync + 'static) -> Self {
        Self(Arc::new(hook))
    }

    /// Waits a fixed time: for a gateway that cannot say.
    pub fn after(delay: Duration) -> Self {
        Self::when(move |_| tokio::time::sleep(delay).boxed())
    }

    /// Ends when snapshot `version` has arrived everywhere.
    pub fn settled(&self, version: u64) -> BoxFuture<'static, ()> {
        (self.0)(version)
    }
}

impl fmt::Debug for Settle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Settle")
    }
}

/// Settings of a node.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where copies of functions, ids and temporary files are kept. Locked by the caller against a second node.
    pub data_dir: PathBuf,
    /// Names the node's cgroups; unique on the machine.
    pub node: String,
    /// The number of this process's [`crate::Run`] on the data directory.
    pub run: usize,
    /// The `nearpath-watchdog` program.
    pub watchdog: PathBuf,
    /// How far instances are kept apart.
    pub isolation: Isolation,
    /// The gateway's address in the node's network; the instances' eIPs are those of its /16.
    pub gateway_ip: Ipv4Addr,
    /// Where functions find the gateway, as a URL without a path: `gateway_url` in the environment of instances.
    pub gateway_url: String,
    /// The node's network; needed unless `isolation` is [`Isolation::None`].
    pub switch: Option<Arc<Switch>>,
    /// What moves packets between the gateway, which is attached already, and the instances; `None`: the gateway is in the
    /// switch.
    pub forwarder: Option<Arc<Forwarder>>,
    /// Where the node answers for destinations outside; `None`: instances reach none.
    pub doorway: Option<Arc<Doorway>>,
    /// Who says who instances are, for callers over QUIC.
    pub identities: Identities,
    /// When a withdrawn instance may be told to stop.
    pub settle: Settle,
    /// How much a function's folder may hold.
    pub artifact_limit: Limit,
    /// How much of each function's log is kept.
    pub log_bound: Bound,
    /// The program that is started with `instance-init` to become an instance; `None`: the running one.
    pub init: Option<PathBuf>,
}

impl Config {
    /// A node without sandbox, named `local`, that gives the gateway 100 ms to take a snapshot.
    pub fn new(data_dir: PathBuf, watchdog: PathBuf) -> Self {
        Self {
            data_dir,
            node: "local".to_owned(),
            run: 0,
            watchdog,
            isolation: Isolation::None,
            gateway_ip: Ipv4Addr::new(10, 62, 0, 1),
            gateway_url: "http://gateway:8080".to_owned(),
            switch: None,
            forwarder: None,
            doorway: None,
            identities: Identities::default(),
            settle: Settle::after(Duration::from_millis(100)),
            artifact_limit: Limit::default(),
            log_bound: Bound::default(),
            init: None,
        }
    }

    /// A folder that belongs to this process's life alone.
    pub(crate) fn own(&self, folder: &str) -> PathBuf {
        self.data_dir.join(named(folder, self.run))
    }

    /// The port in `gateway_url`; that of HTTP without one.
    pub(crate) fn gateway_port(&self) -> u16 {
        self.gateway_url.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).unwrap_or(80)
    }
}

/// Why a node does not start. The texts are for the operator.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// Its folder.
    #[error("the node cannot use {path}: {error}", path = path.display())]
    DataDir {
        /// Which file or folder.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// The thread that starts instances.
    #[error("the node cannot make its launcher: {0}")]
    Launcher(std::io::Error),
    /// What an earlier run left behind.
    #[error("the node cannot remove what an earlier run left behind: {0}")]
    Sweep(std::io::Error),
    /// The thread that has the connections to destinations outside.
    #[error("the node cannot open its way out: {0}")]
    Pool(std::io::Error),
    /// No network although the isolation needs one.
    #[error("the isolation {0:?} needs a switch: create one, or run without a sandbox")]
    NoSwitch(Isolation),
}
