//! Two functions of one domain without a node, `front` and `leaf`: what the examples that measure calls stand on.

use std::path::PathBuf;
use std::time::Duration;

use nearpath::Environment;
use nearpath_domain::node_side::{DomainHandle, DomainSettings, EndpointSocket};
use nearpath_types::{FunctionId, InstanceId};
use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::{Builder, Runtime};

pub(crate) type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// The domain lives as long as this.
pub(crate) struct Pair {
    hub: DomainHandle,
    folder: PathBuf,
    _runtime: Runtime,
}

impl Pair {
    /// A domain in which `front` may call `leaf`.
    pub(crate) fn new(name: &str) -> Outcome<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?;
        let (hub, _faults) =
            runtime.block_on(async { DomainHandle::start(DomainSettings::named(name)) })?;
        hub.declare_edges([("front".parse()?, "leaf".parse()?)]);
        let folder = std::env::temp_dir().join(format!("nearpath-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        Ok(Self {
            hub,
            folder,
            _runtime: runtime,
        })
    }

    /// The surroundings of the one that calls.
    pub(crate) fn caller(&self) -> Outcome<Environment> {
        self.environment(2, "front")
    }

    /// The surroundings of the one that is called.
    pub(crate) fn callee(&self) -> Outcome<Environment> {
        self.environment(1, "leaf")
    }

    fn environment(&self, instance: u64, name: &str) -> Outcome<Environment> {
        let (path, function) = (self.folder.join(name), name.parse::<FunctionId>()?);
        self.hub.admit_instance(
            InstanceId(instance),
            function,
            EndpointSocket::listen_at(&path)?,
        );
        let listen = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        Ok(Environment {
            dispatch_socket: Some(path),
            gateway: "http://127.0.0.1:9".to_owned(),
            listen,
        })
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// CPU time of this thread.
pub(crate) fn spent() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
