//! Access to an instance's network namespace, for connections to its own server.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use nearpath_kernel::bpf::LoopbackRedirect;
use nearpath_kernel::namespace::open_tcp_socket_in;
use nearpath_types::InstanceNetwork;
use nearpath_types::policy::LoopbackDelivery;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, fstat, open};

use super::InstanceProcess;

/// Namespace of an instance, held open with its process. Routing snapshots, draining endpoints and
/// idle connections hold it, some hundred milliseconds longer than its processes. A new instance
/// collides with none: the allocator gives addresses in turn.
pub(crate) struct ProcessNetwork {
    netns: OwnedFd,
    process: Arc<dyn InstanceProcess>,
    /// Redirects the bytes of connections; `None`: they go over TCP.
    redirect: Option<Arc<LoopbackRedirect>>,
}

impl ProcessNetwork {
    /// Opens the namespace of a process; `None` if it shares the machine's network.
    ///
    /// # Errors
    /// Fails when the process has ended.
    pub(crate) fn open(
        process: &Arc<dyn InstanceProcess>,
        redirect: Option<Arc<LoopbackRedirect>>,
    ) -> io::Result<Option<Self>> {
        let process = process.clone();
        let netns = process.open_netns()?;
        Ok(netns.map(|netns| Self {
            netns,
            process,
            redirect,
        }))
    }
}

impl fmt::Debug for ProcessNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProcessNetwork")
            .field("netns", &self.netns)
            .finish_non_exhaustive()
    }
}

impl InstanceNetwork for ProcessNetwork {
    fn open_tcp_socket(&self, is_ipv6: bool) -> io::Result<OwnedFd> {
        let socket = open_tcp_socket_in(&self.netns, is_ipv6)?;
        if let Some(redirect) = &self.redirect {
            // Only speed depends on it: without a mark, the bytes go over TCP.
            let _ = redirect.mark_socket(&socket);
        }
        Ok(socket)
    }

    fn delivery(&self) -> LoopbackDelivery {
        match self.redirect {
            None => LoopbackDelivery::Tcp,
            Some(_) => LoopbackDelivery::Sockmap,
        }
    }

    fn oom_kills(&self) -> Option<u64> {
        self.process.oom_kills()
    }
}

/// Opens the network namespace of the process behind a pidfd; `None` if it is that of the calling
/// thread. Called once the instance announces its server: its namespace changes no more.
///
/// # Errors
/// Fails when the process has ended.
pub(super) fn open_netns_of(pid: u32, pidfd: impl AsFd) -> io::Result<Option<OwnedFd>> {
    let open = |path: &str| open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    let netns = open(&format!("/proc/{pid}/ns/net"))?;
    // Checked after the open: until the process has ended, no other one has its pid.
    if has_ended(pidfd)? {
        return Err(io::ErrorKind::NotFound.into());
    }
    let identity = |netns: &OwnedFd| fstat(netns).map(|stat| (stat.st_dev, stat.st_ino));
    let is_own = identity(&netns)? == identity(&open("/proc/thread-self/ns/net")?)?;
    Ok((!is_own).then_some(netns))
}

/// Returns whether the process has ended: its pidfd is readable then (pidfd_open(2)).
fn has_ended(pidfd: impl AsFd) -> io::Result<bool> {
    let mut events = [PollFd::new(&pidfd, PollFlags::IN)];
    Ok(poll(&mut events, Some(&Timespec::default()))? > 0)
}
