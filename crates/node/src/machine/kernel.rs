//! The real machine: namespaces, cgroups and seccomp of [`nearpath_kernel`].

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use nearpath_kernel::cgroup::{Cgroup, Cgroups, Controller, Limits as KernelLimits};
use nearpath_kernel::sandbox::{self, Bind, Isolation, Launcher, Network, Spec};
use nearpath_kernel::switch::Switch;
use nearpath_pool::{Admission, Admitted, Pool};
use nearpath_types::pool::PoolStatus;
use nearpath_types::{Eip, FunctionId};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid};
use tokio::io::unix::AsyncFd;

use super::{Blueprint, Consumed, DISPATCH, Exit, Launched, Limits, Machine, Outside, Process, Way, session};
use crate::forwarding::{Forwarding, Passage};
use crate::instance::variables;

/// Starts instances as sandboxed processes of this machine.
pub struct KernelMachine {
    launcher: Launcher,
    cgroups: Cgroups,
    isolation: Isolation,
    watchdog: PathBuf,
    switch: Option<Arc<Switch>>,
    gateway: Ipv4Addr,
    forwarding: Option<Forwarding>,
    pool: Option<Pool>,
}

/// Longest wait for what instances left behind: the longest `flush` there may be, and a little.
const SETTLE: Duration = Duration::from_secs(605);
/// What stands where the kernel keeps nobody from anything.
const UNENFORCED: &str = "egress is not enforced without a sandbox: this function reaches what this machine reaches";
/// What stands where there is no way out.
const CLOSED: &str = "egress: this node has no way out; nothing outside is reached";

impl KernelMachine {
    /// A machine with `launcher` for its instances. `watchdog` is the program on the host; `node` names the cgroups.
    pub fn new(
        launcher: Launcher,
        node: &str,
        isolation: Isolation,
        watchdog: &Path,
        network: (Ipv4Addr, Option<Arc<Switch>>),
    ) -> Self {
        let (gateway, switch) = network;
        let (cgroups, watchdog) = (Cgroups::detect(node), watchdog.to_owned());
        Self { launcher, cgroups, isolation, watchdog, switch, gateway, forwarding: None, pool: None }
    }

    /// The same machine, on which a forwarder moves the packets of instances.
    pub(crate) fn forwarded(self, forwarding: Forwarding) -> Self {
        Self { forwarding: Some(forwarding), ..self }
    }

    /// The same machine, whose instances reach destinations outside by the pool.
    pub(crate) fn going_out_by(self, pool: Pool) -> Self {
        Self { pool: Some(pool), ..self }
    }

    /// Lets an instance out to where its function may go, and says what it does not reach.
    fn admit(&self, from: &Blueprint) -> io::Result<(Option<Admitted>, Vec<String>)> {
        let Outside { chain, egress, secrets } = from.outside.clone();
        match (&self.pool, from.eip) {
            _ if egress.is_empty() => Ok((None, Vec::new())),
            (_, None) => Ok((None, vec![UNENFORCED.to_owned()])),
            (None, _) => Ok((None, vec![CLOSED.to_owned()])),
            (Some(pool), Some(eip)) => {
                let (instance, function) = (from.id, from.function.clone());
                let admitted = pool.admit(&Admission { instance, function, chain, eip, egress, secrets })?;
                let troubles = admitted.troubles.iter().map(ToString::to_string);
                let remarks = troubles.chain(admitted.remarks.iter().cloned()).collect();
                Ok((Some(admitted), remarks))
            }
        }
    }

    fn spec(&self, from: &Blueprint, cgroup: &Cgroup, admitted: Option<&Admitted>) -> Spec {
        let mut spec = Spec::new(from.id, self.isolation, self.watchdog.clone());
        let forwarder = self.forwarding.as_ref().map(Forwarding::forwarder);
        let destinations = admitted.map(|admitted| admitted.known.clone()).unwrap_or_default();
        let hatches = admitted.map(|admitted| admitted.hatches.clone()).unwrap_or_default();
        let bare = |eip| Network::new(eip, self.gateway, self.switch.clone());
        let network = |eip| Network { forwarder, destinations, hatches, ..bare(eip) };
        spec.network = from.eip.map(network);
        spec.listened = admitted.is_some_and(|admitted| admitted.listened);
        spec.pickup = from.pickup;
        spec.cgroup = cgroup.join_files();
        (spec.uid, spec.gid) = (from.uid, from.uid);
        let target = PathBuf::from(Spec::FUNCTION);
        spec.binds = vec![Bind { source: from.folder.clone(), target: target.clone(), writable: false }];
        let door =
            from.dispatch.iter().map(|door| Bind { source: door.clone(), target: DISPATCH.into(), writable: false });
        spec.binds.extend(door.filter(|_| self.isolation != Isolation::None));
        spec.workdir = target;
        spec.secrets = from.secrets.clone();
        spec.read_only_root = from.read_only_root;
        spec.environment = from.environment.clone();
        spec.scratch = (self.isolation == Isolation::None).then(|| from.tmp.clone());
        spec
    }
}

impl Machine for KernelMachine {
    fn launch(&self, blueprint: &Blueprint) -> io::Result<Launched> {
        let cgroup = self.cgroups.create(blueprint.id, &limits(&blueprint.limits))?;
        let scratch = Scratch::make(&blueprint.tmp, self.isolation)?;
        let passage = self.forwarding.as_ref().zip(blueprint.eip);
        let passage = passage.map(|(all, eip)| all.admit(eip, &blueprint.function)).transpose()?;
        let (admitted, remarks) = self.admit(blueprint)?;
        let launched = self.launcher.launch(&self.spec(blueprint, &cgroup, admitted.as_ref()))?;
        let sandbox::Launched { pid, pidfd, stdout, stderr, notes, identity, listener, hatches } = launched;
        if let Some((admitted, listener)) = admitted.as_ref().zip(listener) {
            admitted.supervise(listener)?;
        }
        if let Some((admitted, hatches)) = admitted.as_ref().zip(hatches) {
            admitted.attend(hatches)?;
        }
        let process = KernelProcess {
            pidfd,
            session: Pid::from_raw(pid as i32).filter(|_| self.isolation == Isolation::None),
            remains: Mutex::new(Some(Remains { cgroup, _scratch: scratch, _admitted: admitted, _passage: passage })),
        };
        Ok(Launched { pid, stdout, stderr, notes, identity, remarks, process: Arc::new(process) })
    }

    fn foresee(&self, function: &FunctionId) {
        self.pool.iter().for_each(|pool| pool.foresee(function));
    }

    fn settle(&self) {
        let settled = self.pool.as_ref().is_none_or(|pool| pool.settle(SETTLE));
        if !settled {
            tracing::warn!(
                "writes of functions to destinations with `writes=async` are lost: there is no time left to deliver them"
            );
        }
    }

    fn leave(&self) {
        self.cgroups.leave();
    }

    fn sweep(&self) -> io::Result<()> {
        let swept = self.cgroups.sweep()?;
        if swept.removed > 0 {
            tracing::info!(cgroups = swept.removed, killed = swept.killed, "removed what an earlier run left behind");
        }
        Ok(())
    }

    fn pool(&self) -> Vec<PoolStatus> {
        self.pool.as_ref().map(Pool::report).unwrap_or_default()
    }

    fn rest(&self) {
        self.pool.iter().for_each(Pool::rest);
    }

    fn has_network(&self) -> bool {
        self.isolation != Isolation::None
    }

    /// Only where a forwarder stands between instances: the switch by itself carries nothing from one to another.
    fn way(&self, one: Eip, other: Eip) -> Option<Way> {
        let joined = self.forwarding.as_ref()?.join(one, other, variables::PORT);
        let joined =
            joined.inspect_err(|error| tracing::warn!(%one, %other, %error, "they call each other by the gateway"));
        joined.ok().map(|bridge| Box::new(bridge) as Way)
    }

    /// The limit of processes is the node's own most of the time, so a tenant is not bothered with it.
    fn unkept(&self, limits: &Limits) -> Vec<&'static str> {
        let named = [
            (limits.memory.is_some(), Controller::Memory, "limits.memory"),
            (limits.cpu.is_some(), Controller::Cpu, "limits.cpu"),
        ];
        let missing = self.cgroups.missing();
        let unkept = named.into_iter().filter(|(set, controller, _)| *set && missing.contains(controller));
        unkept.map(|(_, _, name)| name).collect()
    }
}

fn limits(from: &Limits) -> KernelLimits {
    KernelLimits { memory_bytes: from.memory, cpu_millis: from.cpu, pids: from.pids }
}

/// The folder that stands in for a private `/tmp`; removed when dropped.
struct Scratch(Option<PathBuf>);

impl Scratch {
    fn make(path: &Path, isolation: Isolation) -> io::Result<Self> {
        if isolation != Isolation::None {
            return Ok(Self(None));
        }
        std::fs::create_dir_all(path)?;
        Ok(Self(Some(path.to_owned())))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Some(error) = self.0.take().and_then(|path| std::fs::remove_dir_all(path).err()) {
            tracing::warn!(%error, "a temporary folder is left behind; the node's next start removes it");
        }
    }
}

struct Remains {
    cgroup: Cgroup,
    _scratch: Scratch,
    _admitted: Option<Admitted>, // before its passage: rows go while its station is there
    _passage: Option<Passage>,
}

struct KernelProcess {
    pidfd: OwnedFd,
    /// Its session, where there is no PID namespace that dies with the watchdog.
    session: Option<Pid>,
    remains: Mutex<Option<Remains>>,
}

impl KernelProcess {
    /// One that has ended cannot be signalled any more, which is as good.
    fn signal(&self, signal: Signal) {
        let _ = pidfd_send_signal(&self.pidfd, signal);
    }

    fn remains(&self) -> std::sync::MutexGuard<'_, Option<Remains>> {
        self.remains.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn wait(&self) -> io::Result<Exit> {
        #[expect(deprecated, reason = "its successor is unsafe for descriptors of unknown safety; this one is owned")]
        let ended = AsyncFd::new(self.pidfd.as_fd())?; // readable once it ended: pidfd_open(2)
        let _ = ended.readable().await?;
        self.kill_session(); // while the zombie still holds its number
        let Some(status) = waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::EXITED)? else {
            return Ok(Exit::Unknown);
        };
        let code = status.exit_status().map(Exit::Code);
        Ok(code.or(status.terminating_signal().map(Exit::Signal)).unwrap_or(Exit::Unknown))
    }

    /// Each process of the tenant leads a group, but all are of the watchdog's session.
    fn kill_session(&self) {
        if let Some(session) = self.session {
            session::kill(session);
        }
    }
}

impl Process for KernelProcess {
    fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    fn kill(&self) {
        self.signal(Signal::KILL); // first: it would start anew what dies
        self.kill_session();
    }

    fn exited(&self) -> BoxFuture<'_, Exit> {
        self.wait().map(|exit| exit.unwrap_or(Exit::Unknown)).boxed()
    }

    fn consumed(&self) -> Option<Consumed> {
        let usage = self.remains().as_ref()?.cgroup.usage().ok()?;
        Some(Consumed { cpu_nanos: usage.cpu.as_nanos() as u64, memory_bytes: usage.memory_bytes })
    }

    fn cpu(&self) -> Option<Duration> {
        self.remains().as_ref()?.cgroup.cpu()
    }

    fn place(&self, all: &[usize], from: Option<usize>, to: Option<usize>) -> io::Result<()> {
        self.remains().as_ref().map_or(Ok(()), |remains| remains.cgroup.place(all, from, to).map(drop))
    }

    fn release(&self) {
        let remains = self.remains().take(); // no guard: letting go may take seconds, and others look at what there is
        drop(remains);
    }
}
