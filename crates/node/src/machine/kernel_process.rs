//! Process of an instance on the real machine.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use nearpath_egress::AdmittedInstance;
use nearpath_kernel::cgroup::{InstanceCgroup, has_swap};
use nearpath_kernel::sandbox::IsolationLevel;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid};
use tokio::io::unix::AsyncFd;

use super::instance_network::open_netns_of;
use super::{InstanceProcess, ProcessExit, ProcessUsage, session};
use crate::forwarding::GatewayPermit;
use crate::virtual_switch::InstancePermit;

/// Replacement of a private `/tmp`; dropping it removes the folder.
pub(super) struct ScratchDir(Option<PathBuf>);

impl ScratchDir {
    pub(super) fn create(path: &Path, isolation: IsolationLevel) -> io::Result<Self> {
        // The sandbox mounts a private /tmp instead.
        if isolation != IsolationLevel::None {
            return Ok(Self(None));
        }
        std::fs::create_dir_all(path)?;
        Ok(Self(Some(path.to_owned())))
    }
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        if let Some(error) = self
            .0
            .take()
            .and_then(|path| std::fs::remove_dir_all(path).err())
        {
            tracing::warn!(%error, "temporary folder could not be removed; the node's next start removes it");
        }
    }
}

/// Parts of the machine that an instance holds.
pub(super) struct ProcessResources {
    pub(super) cgroup: InstanceCgroup,
    pub(super) _scratch: ScratchDir,
    // Dropped before the permit: its routes need the attached device.
    pub(super) _admitted: Option<AdmittedInstance>,
    pub(super) _permit: Option<GatewayPermit>,
    pub(super) switch_permit: Option<InstancePermit>,
    /// Set from the first step of freezing to the last one of thawing.
    pub(super) is_frozen: bool,
}

/// Watchdog of an instance, as the node's child.
pub(super) struct KernelProcess {
    pid: u32,
    pidfd: OwnedFd,
    /// Session of the watchdog, where no PID namespace ends with it.
    session: Option<Pid>,
    resources: Mutex<Option<ProcessResources>>,
    /// Kills for lack of memory when the resources were released.
    last_oom_kills: OnceLock<Option<u64>>,
}

impl KernelProcess {
    /// Takes over a process that was launched. `session` is its own where no PID namespace ends
    /// with it.
    pub(super) fn start(
        (pid, pidfd): (u32, OwnedFd),
        session: Option<Pid>,
        resources: ProcessResources,
    ) -> Arc<Self> {
        let process = Arc::new(Self {
            pid,
            pidfd,
            session,
            resources: Mutex::new(Some(resources)),
            last_oom_kills: OnceLock::new(),
        });
        process.track_connections();
        process
    }

    /// Lets the virtual switch find its connections.
    fn track_connections(self: &Arc<Self>) {
        let resources = self.resources();
        let permit = resources
            .as_ref()
            .and_then(|held| held.switch_permit.as_ref());
        if let Some(permit) = permit {
            let process: Weak<Self> = Arc::downgrade(self);
            permit.track_process(process);
        }
    }

    /// Sends a signal; an ended process needs none.
    fn send_signal(&self, signal: Signal) {
        // A pidfd, because a pid may name another process by now.
        let _ = pidfd_send_signal(&self.pidfd, signal);
    }

    fn leave_peers(&self, resources: &ProcessResources) -> io::Result<()> {
        match (&resources.switch_permit, self.open_netns()?) {
            (Some(permit), Some(netns)) => permit.leave_peers(netns),
            _ => Ok(()),
        }
    }

    fn resources(&self) -> MutexGuard<'_, Option<ProcessResources>> {
        self.resources
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    async fn wait_process(&self) -> io::Result<ProcessExit> {
        #[expect(
            deprecated,
            reason = "its successor is unsafe for descriptors of unknown safety; this one is owned"
        )]
        // Readable once the process has ended: pidfd_open(2).
        let ended = AsyncFd::new(self.pidfd.as_fd())?;
        let _ = ended.readable().await?;
        self.kill_session(); // while the zombie still holds its session id
        // Reaping frees the pid, so nothing may signal it afterwards.
        let Some(status) = waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::EXITED)? else {
            return Ok(ProcessExit::Unknown);
        };
        let code = status.exit_status().map(ProcessExit::Code);
        Ok(code
            .or(status.terminating_signal().map(ProcessExit::Signal))
            .unwrap_or(ProcessExit::Unknown))
    }

    /// Kills all processes of the watchdog's session. Each process of the tenant leads its own
    /// group.
    fn kill_session(&self) {
        if let Some(session) = self.session {
            session::kill_session(session);
        }
    }
}

impl InstanceProcess for KernelProcess {
    fn terminate(&self) {
        self.send_signal(Signal::TERM);
    }

    fn kill(&self) {
        self.send_signal(Signal::KILL); // first, because the watchdog would restart what dies
        self.kill_session();
    }

    fn wait_exit(&self) -> BoxFuture<'_, ProcessExit> {
        self.wait_process()
            .map(|exit| exit.unwrap_or(ProcessExit::Unknown))
            .boxed()
    }

    fn read_usage(&self) -> Option<ProcessUsage> {
        let usage = self.resources().as_ref()?.cgroup.read_usage().ok()?;
        Some(ProcessUsage {
            cpu_nanos: usage.cpu.as_nanos() as u64,
            memory_bytes: usage.memory_bytes,
        })
    }

    fn oom_kills(&self) -> Option<u64> {
        match self.resources().as_ref() {
            Some(resources) => resources.cgroup.oom_kills(),
            None => self.last_oom_kills.get().copied().flatten(),
        }
    }

    fn open_netns(&self) -> io::Result<Option<OwnedFd>> {
        open_netns_of(self.pid, &self.pidfd)
    }

    fn open_server(&self, port: u16) -> io::Result<()> {
        let resources = self.resources();
        let permit = resources
            .as_ref()
            .and_then(|held| held.switch_permit.as_ref());
        match permit.zip(self.open_netns()?) {
            Some((permit, netns)) => permit.open_server(netns, port),
            None => Ok(()),
        }
    }

    fn has_calls(&self) -> io::Result<bool> {
        let resources = self.resources();
        let permit = resources
            .as_ref()
            .and_then(|held| held.switch_permit.as_ref());
        match permit.zip(self.open_netns()?) {
            Some((permit, netns)) => permit.has_calls(netns),
            // Without a switch nothing is frozen.
            None => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    fn freeze(&self) -> io::Result<()> {
        let mut resources = self.resources();
        let resources = resources.as_mut().ok_or(io::ErrorKind::NotFound)?;
        resources.cgroup.freeze()?;
        resources.is_frozen = true;
        let left = self.leave_peers(resources);
        left.inspect_err(|_| drop(resources.cgroup.thaw()))?;
        if has_swap() {
            let _ = resources.cgroup.reclaim_memory(); // as far as the kernel can
        }
        Ok(())
    }

    fn thaw(&self) -> io::Result<()> {
        let mut resources = self.resources();
        let Some(resources) = resources.as_mut().filter(|held| held.is_frozen) else {
            return Ok(());
        };
        let rejoined = match &resources.switch_permit {
            Some(permit) => permit.rejoin_peers(),
            None => Ok(()),
        };
        // Even if its peers do not find it: a frozen process could not end in an orderly way.
        resources.cgroup.thaw()?;
        resources.is_frozen = false;
        rejoined
    }

    fn cpu_time(&self) -> Option<Duration> {
        self.resources().as_ref()?.cgroup.cpu_time()
    }

    fn move_threads(
        &self,
        all: &[usize],
        from: Option<usize>,
        to: Option<usize>,
    ) -> io::Result<()> {
        self.resources().as_ref().map_or(Ok(()), |resources| {
            resources.cgroup.move_threads(all, from, to).map(drop)
        })
    }

    fn release_resources(&self) {
        // Lost calls ask for it after their instance's end.
        let _ = self.last_oom_kills.set(self.oom_kills()); // a second release changes nothing
        // without the lock: dropping may take seconds, and others read usage meanwhile
        let resources = self.resources().take();
        drop(resources);
    }
}
