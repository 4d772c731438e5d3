//! What the node needs of the machine below it: start one instance, signal it, learn of its end, take its remains away.
//!
//! [`Machine`] is the seam between decisions and the kernel: [`kernel::KernelMachine`] is the real one, the tests run the
//! same node on a fake.

pub mod kernel;
mod session;

#[doc(hidden)] // for the fuzz targets
pub use session::alive_session;

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use futures_util::future::BoxFuture;
use nearpath_types::pool::PoolStatus;
use nearpath_types::{Egress, Eip, FunctionId, InstanceId};

/// Where an instance finds the door to its domain; see `contract/dispatch.md`.
pub const DISPATCH: &str = "/run/nearpath/dispatch";

/// Everything that one instance needs to exist.
#[derive(Clone)]
pub struct Blueprint {
    /// Its id.
    pub id: InstanceId,
    /// Whose instance it is.
    pub function: FunctionId,
    /// Its address; `None`: it shares the machine's network.
    pub eip: Option<Eip>,
    /// The user it runs as, where the node may choose.
    pub uid: u32,
    /// The tenant's folder, to be seen at `/home/app/function`.
    pub folder: PathBuf,
    /// A folder of its own for temporary files, where `/tmp` cannot be private.
    pub tmp: PathBuf,
    /// The socket at which its parties join their domain, to be seen at [`DISPATCH`].
    pub dispatch: Option<PathBuf>,
    /// An address of its loopback that the name `gateway` means, instead of the gateway's.
    pub pickup: Option<Ipv4Addr>,
    /// Its whole environment.
    pub environment: BTreeMap<String, String>,
    /// Contents by name, to be seen under `/var/openfaas/secrets`.
    pub secrets: BTreeMap<String, Vec<u8>>,
    /// Where it may go outside.
    pub outside: Outside,
    /// Limits of its memory, CPU and processes.
    pub limits: Limits,
    /// Whether its root is read-only apart from `/tmp`.
    pub read_only_root: bool,
}

/// Where an instance may go outside.
#[derive(Clone, Default)]
pub struct Outside {
    /// The chain of its function, whose functions may share connections.
    pub chain: Option<String>,
    /// What its function declared.
    pub egress: Vec<Egress>,
    /// The secrets that this names, with their contents; the instance does not see them.
    pub secrets: BTreeMap<String, Vec<u8>>,
}

/// Secrets never reach a log.
impl fmt::Debug for Blueprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.id, self.function)
    }
}

/// Limits of one instance; `None`: no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    /// Bytes.
    pub memory: Option<u64>,
    /// Thousandths of a core.
    pub cpu: Option<u64>,
    /// Processes and threads.
    pub pids: Option<u64>,
}

/// An instance that was started.
pub struct Launched {
    /// Process id of its watchdog, as the node sees it.
    pub pid: u32,
    /// Reading end of its standard output.
    pub stdout: OwnedFd,
    /// Reading end of its standard error.
    pub stderr: OwnedFd,
    /// Reading end of its notes; see `contract/notes.md`.
    pub notes: OwnedFd,
    /// The node's end of the socket at which it hears who it is: `contract/identity.md`.
    pub identity: OwnedFd,
    /// What it does not get of what its tenant wanted, in words for the tenant.
    pub remarks: Vec<String>,
    /// Power over it.
    pub process: Arc<dyn Process>,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// By itself, with this code.
    Code(i32),
    /// By this signal.
    Signal(i32),
    /// Nobody could tell.
    Unknown,
}

/// What an instance has used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Consumed {
    /// CPU time since its start, in nanoseconds.
    pub cpu_nanos: u64,
    /// Memory at this moment, in bytes.
    pub memory_bytes: u64,
}

/// Leave for the watchdogs of two instances to reach each other; ends when it is dropped.
pub type Way = Box<dyn std::any::Any + Send + Sync>;

/// Power over a started instance. Calls to one that has ended do nothing.
pub trait Process: Send + Sync + 'static {
    /// Asks it to finish what it has and end (SIGTERM).
    fn terminate(&self);
    /// Ends it and everything in it now (SIGKILL).
    fn kill(&self);
    /// Waits for its end. May be asked once.
    fn exited(&self) -> BoxFuture<'_, Exit>;
    /// What it has used; `None` where nobody counts.
    fn consumed(&self) -> Option<Consumed>;
    /// CPU time since its start; `None` where nobody counts. Cheaper than [`Process::consumed`].
    fn cpu(&self) -> Option<Duration> {
        self.consumed().map(|consumed| Duration::from_nanos(consumed.cpu_nanos))
    }
    /// Moves its threads from one processor to another; none is every one of `all`. A thread that has chosen for itself
    /// stays. Blocks.
    ///
    /// # Errors
    /// When it has ended.
    fn place(&self, _all: &[usize], _from: Option<usize>, _to: Option<usize>) -> io::Result<()> {
        Ok(())
    }
    /// Takes away what the ended process leaves behind (cgroup, folders). Blocks; may be called more than once.
    fn release(&self);
}

/// The machine below the node.
pub trait Machine: Send + Sync + 'static {
    /// Starts an instance. Blocks for some milliseconds.
    ///
    /// # Errors
    /// When the kernel refuses; nothing is left behind then.
    fn launch(&self, blueprint: &Blueprint) -> io::Result<Launched>;

    /// Kills and removes what an earlier life of this node left behind. Blocks.
    ///
    /// # Errors
    /// When something could not be removed; the text names it.
    fn sweep(&self) -> io::Result<()>;

    /// Waits until what instances left behind for destinations outside is delivered, each for as long as its destination permits. Blocks.
    fn settle(&self) {}

    /// A call of a function has arrived whose egress declares reads. Must not block.
    fn foresee(&self, _function: &FunctionId) {}

    /// Removes what the node itself keeps on the machine, once nothing runs on it any more.
    fn leave(&self) {}

    /// Lets datagrams go between the watchdogs of two instances, both ways, from port to port where they serve; nothing else goes that way.
    /// `None`: instances of this machine do not reach each other. Blocks.
    fn way(&self, _one: Eip, _other: Eip) -> Option<Way> {
        None
    }

    /// How the connections of this machine's instances to destinations outside stand.
    fn pool(&self) -> Vec<PoolStatus> {
        Vec::new()
    }

    /// From now on no connection to a destination outside is kept open for nobody: this node is about to end. Those in use stay, and who asks gets new ones.
    fn rest(&self) {}

    /// Whether instances get a network of their own, hence an eIP.
    fn has_network(&self) -> bool;

    /// Those of a tenant's limits that nothing keeps on this machine, by their names in a stack file.
    fn unkept(&self, _limits: &Limits) -> Vec<&'static str> {
        Vec::new()
    }
}
