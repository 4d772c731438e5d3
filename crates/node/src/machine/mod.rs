//! Interface to the machine below the node: start an instance, signal it, wait for its end, clean
//! up.
//!
//! [`InstanceMachine`] separates decisions from the kernel. [`kernel::KernelMachine`] is the real
//! one; tests run the same node on a fake.

mod client_tls;
mod instance_network;
pub mod kernel;
mod kernel_process;
mod loopback;
mod session;

pub(crate) use instance_network::ProcessNetwork;
#[doc(hidden)] // for the fuzz targets
pub use session::alive_session;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use futures_util::future::BoxFuture;
use nearpath_kernel::bpf::{LoopbackCounters, LoopbackRedirect};
use nearpath_kernel::sandbox::HostEntry;
use nearpath_types::pool_status::PoolStatus;
use nearpath_types::{EgressSpec, Eip, FunctionId, InstanceId, VirtualAddress};

use crate::virtual_switch::SwitchChange;

/// Path of the socket to an instance's domain; see `contract/dispatch.md`.
pub const DISPATCH_PATH: &str = "/run/nearpath/dispatch";

/// Everything that one instance needs.
#[derive(Clone)]
pub struct InstanceSpec {
    /// Id of the instance.
    pub id: InstanceId,
    /// Function of the instance.
    pub function: FunctionId,
    /// Address of the instance; `None` if it shares the machine's network.
    pub eip: Option<Eip>,
    /// User id, where the node may choose.
    pub uid: u32,
    /// The tenant's folder, visible at `/home/app/function`.
    pub folder: PathBuf,
    /// Folder for temporary files, where `/tmp` cannot be private.
    pub tmp_dir: PathBuf,
    /// Socket to its domain, visible at [`DISPATCH_PATH`].
    pub dispatch_socket: Option<PathBuf>,
    /// Security domain of its chain, if the node may place the chain.
    pub placed_domain: Option<String>,
    /// Loopback address that the name `gateway` resolves to, instead of the gateway's.
    pub local_gateway: Option<Ipv4Addr>,
    /// Address inside at which the gateway itself listens.
    pub gateway_listener: Option<SocketAddrV4>,
    /// Complete environment.
    pub environment: BTreeMap<String, String>,
    /// Contents by name, visible under `/var/openfaas/secrets`.
    pub secrets: BTreeMap<String, Vec<u8>>,
    /// Destinations outside.
    pub egress: EgressAccess,
    /// Virtual address of its function.
    pub virtual_address: Option<Ipv4Addr>,
    /// Virtual addresses of its callees, and their names.
    pub callees: Vec<HostEntry>,
    /// Limits of memory, CPU and processes.
    pub limits: InstanceLimits,
    /// Makes the root read-only except `/tmp`.
    pub read_only_root: bool,
}

/// Destinations that an instance may reach outside.
#[derive(Clone, Default)]
pub struct EgressAccess {
    /// Chain of its function, whose functions may share connections.
    pub chain: Option<String>,
    /// Declared destinations.
    pub destinations: Vec<EgressSpec>,
    /// Secrets for them, with contents; invisible to the instance.
    pub secrets: BTreeMap<String, Vec<u8>>,
}

/// Keeps secrets out of logs.
impl fmt::Debug for InstanceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.id, self.function)
    }
}

/// Limits of one instance; `None` is unlimited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InstanceLimits {
    /// Bytes of memory.
    pub memory: Option<u64>,
    /// Thousandths of a core.
    pub cpu: Option<u64>,
    /// Processes and threads.
    pub pids: Option<u64>,
}

/// A started instance.
pub struct StartedInstance {
    /// Process id of its watchdog in the node's PID namespace.
    pub pid: u32,
    /// Reading end of its standard output.
    pub stdout: OwnedFd,
    /// Reading end of its standard error.
    pub stderr: OwnedFd,
    /// Reading end of its notes; see `contract/notes.md`.
    pub notes: OwnedFd,
    /// The node's end of the socket for its identity: `contract/identity.md`.
    pub identity: OwnedFd,
    /// Socket that receives the gateway's listener, if its spec asks for one.
    pub gateway_listener: Option<OwnedFd>,
    /// Remarks for the tenant about features that it does not get.
    pub remarks: Vec<String>,
    /// Handle to its process.
    pub process: Arc<dyn InstanceProcess>,
}

/// Result of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessExit {
    /// Exited with this code.
    Code(i32),
    /// Killed by this signal.
    Signal(i32),
    /// Unknown result.
    Unknown,
}

/// Resources that an instance has used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProcessUsage {
    /// CPU time since its start, in nanoseconds.
    pub cpu_nanos: u64,
    /// Current memory, in bytes.
    pub memory_bytes: u64,
}

/// Permission of two instances' watchdogs to reach each other; ends when dropped.
pub type DirectPathGuard = Box<dyn std::any::Any + Send + Sync>;

/// UDP socket of the machine for one instance.
pub struct MachineSocket {
    /// The socket, which reaches its peers alone.
    pub socket: OwnedFd,
    /// Its port.
    pub port: u16,
    /// Its peers; none at first, and none after this was dropped.
    pub peers: Box<dyn SocketPeers>,
}

/// Peers of a socket, whoever holds it.
pub trait SocketPeers: Send {
    /// Replaces the peers.
    ///
    /// # Errors
    /// Fails when the kernel has no memory for one.
    fn replace(&mut self, peers: BTreeSet<SocketAddr>) -> io::Result<()>;
}

/// Handle to a started instance. Calls have no effect on one that has ended.
pub trait InstanceProcess: Send + Sync + 'static {
    /// Asks it to finish its requests and end (SIGTERM).
    fn terminate(&self);
    /// Kills it and everything inside (SIGKILL).
    fn kill(&self);
    /// Waits for its end. May be called once.
    fn wait_exit(&self) -> BoxFuture<'_, ProcessExit>;
    /// Returns its usage; `None` without accounting.
    fn read_usage(&self) -> Option<ProcessUsage>;
    /// Returns how many of its processes the kernel has killed for lack of memory; `None` where it
    /// does not count them.
    fn oom_kills(&self) -> Option<u64> {
        None
    }
    /// Opens its network namespace; `None` if it shares the machine's.
    ///
    /// # Errors
    /// Fails when it has ended.
    fn open_netns(&self) -> io::Result<Option<OwnedFd>> {
        Ok(None)
    }
    /// Lets connections of edges that balance them reach its HTTP server, which listens at an IPv4 address
    /// of its network namespace.
    ///
    /// # Errors
    /// Fails when it has ended, or the kernel has no memory.
    fn open_server(&self, _port: u16) -> io::Result<()> {
        Ok(())
    }
    /// Returns whether callers have connections to it: the gateway, or others to its watchdog. Blocks.
    ///
    /// # Errors
    /// Fails when it has ended.
    fn has_calls(&self) -> io::Result<bool> {
        Ok(false)
    }
    /// Stops all of its processes, until [`Self::thaw`]. Ends the connections of other instances, which
    /// would get no answer. Blocks.
    ///
    /// # Errors
    /// Fails where [`InstanceMachine::can_freeze`] is false, and when they do not stop. They go on then.
    fn freeze(&self) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    /// Lets its processes go on.
    ///
    /// # Errors
    /// Fails when it has ended.
    fn thaw(&self) -> io::Result<()> {
        Ok(())
    }
    /// Returns its CPU time; `None` without accounting. Cheaper than
    /// [`InstanceProcess::read_usage`].
    fn cpu_time(&self) -> Option<Duration> {
        self.read_usage()
            .map(|consumed| Duration::from_nanos(consumed.cpu_nanos))
    }
    /// Moves its threads from one processor to another; `None` stands for `all` of them.
    ///
    /// Threads with an affinity of their own stay. Blocks.
    ///
    /// # Errors
    /// Fails when it has ended.
    fn move_threads(
        &self,
        _all: &[usize],
        _from: Option<usize>,
        _to: Option<usize>,
    ) -> io::Result<()> {
        Ok(())
    }
    /// Releases the resources of the ended process (cgroup, folders). Blocks; may be called again.
    fn release_resources(&self);
}

/// The machine below the node.
pub trait InstanceMachine: Send + Sync + 'static {
    /// Starts an instance. Blocks for some milliseconds.
    ///
    /// # Errors
    /// Fails when the kernel refuses; nothing is left behind then.
    fn launch_instance(&self, spec: &InstanceSpec) -> io::Result<StartedInstance>;

    /// Kills and removes leftovers of an earlier run of this node. Blocks.
    ///
    /// # Errors
    /// Fails when something could not be removed; the text names it.
    fn sweep_leftovers(&self) -> io::Result<()>;

    /// Waits until asynchronous writes to destinations outside are delivered, each up to its
    /// declared time. Blocks.
    fn flush_writes(&self) {}

    /// Prefetches the declared reads of a function that was called. Must not block.
    fn prefetch(&self, _function: &FunctionId) {}

    /// Removes the node's own cgroups, once no instance runs. Ends the connections to destinations
    /// outside, because their thread has a cgroup.
    fn remove_cgroups(&self) {}

    /// Permits datagrams between the watchdogs of two instances, in both directions between their
    /// ports.
    ///
    /// Returns `None` where instances do not reach each other. Blocks.
    fn open_direct_path(&self, _one: Eip, _other: Eip) -> Option<DirectPathGuard> {
        None
    }

    /// Opens a socket for direct calls between nodes; `None` on a node that offers none. Blocks.
    ///
    /// # Errors
    /// Fails when no port is free.
    fn open_machine_socket(&self) -> io::Result<Option<MachineSocket>> {
        Ok(None)
    }

    /// Returns the status of connections to destinations outside.
    fn pool_status(&self) -> Vec<PoolStatus> {
        Vec::new()
    }

    /// Closes idle connections to destinations outside and keeps no new ones: the node is shutting
    /// down. Used ones stay, and new ones are still opened.
    fn close_idle_connections(&self) {}

    /// Sets the numbers of nodes that share the limits of destinations, by limit group.
    fn set_egress_nodes(&self, _counts: BTreeMap<String, u32>) {}

    /// Makes the network of virtual addresses of IPv6 known, by any of them.
    fn set_virtual_network(&self, _any: VirtualAddress) {}

    /// Changes what virtual addresses lead to, and who may use them.
    fn apply_switch_changes(&self, _changes: &[SwitchChange]) {}

    /// Returns whether instances get a network of their own, hence an eIP.
    fn has_network(&self) -> bool;

    /// Returns whether instances can be frozen here.
    fn can_freeze(&self) -> bool {
        false
    }

    /// Returns the redirection of bytes to functions' own servers. Attaches it at the first use, and blocks
    /// for up to 2 s then.
    ///
    /// # Errors
    /// Names the missing facility of this machine or build.
    fn loopback_redirect(&self) -> io::Result<Arc<LoopbackRedirect>> {
        let why = "this machine has no BPF";
        Err(io::Error::new(io::ErrorKind::Unsupported, why))
    }

    /// Returns the outcomes of that redirection so far.
    fn loopback_counters(&self) -> LoopbackCounters {
        LoopbackCounters::default()
    }

    /// Returns limits that this machine does not enforce, by their names in a stack file.
    fn unenforced_limits(&self, _limits: &InstanceLimits) -> Vec<&'static str> {
        Vec::new()
    }
}
