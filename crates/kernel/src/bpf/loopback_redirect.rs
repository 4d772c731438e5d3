//! Redirection of bytes between the gateway and functions' own servers; see `bpf/sock_loopback.c`.

use std::fmt;
use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use aya::Ebpf;
use aya::maps::{MapData, PerCpuArray, SkStorage, SockHash};
use aya::programs::SkMsg;
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, connect, send, socket_with};

use super::object::{self, attach_sock_ops, bpf_error, load_object, sum_counter, take_map};
use crate::cgroup::{NodeCgroups, own_unified_group};

/// Time limit of each step of the check: its connection does not leave the machine.
const CHECK_TIMEOUT: Duration = Duration::from_secs(1);
/// The gateway's side in [`ConnectionEnd`].
const GATEWAY: u32 = 0;

/// `struct connection_end` of `bpf/sock_loopback.c`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct ConnectionEnd {
    connection_id: u64,
    side: u32,
    padding: u32,
}

#[expect(
    unsafe_code,
    reason = "aya's mark for what may be copied to and from maps"
)]
mod pod_impls {
    // SAFETY: a u64 and two u32, no implicit padding; every value is valid.
    unsafe impl aya::Pod for super::ConnectionEnd {}
}

/// Outcomes since the programs were attached.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LoopbackCounters {
    /// Connections both of whose ends are registered.
    pub connections: u64,
    /// Messages that were put into the other end's receive queue.
    pub redirected: u64,
    /// Messages of registered ends that went over TCP: above the limit of a response, or without the other
    /// end.
    pub over_tcp: u64,
}

/// Redirects the bytes of marked connections inside instances. Dropping it ends that: open connections
/// go on over TCP.
pub struct LoopbackRedirect {
    ends: Mutex<SkStorage<MapData, ConnectionEnd>>,
    counters: PerCpuArray<MapData, u64>,
    next_connection_id: AtomicU64,
    /// Holds the programs and their attachments.
    _loaded: Ebpf,
}

impl LoopbackRedirect {
    /// Loads the programs, and attaches them to the groups of this process and of the node's instances.
    ///
    /// # Errors
    /// As [`Self::check_support`].
    pub fn attach(cgroups: &NodeCgroups) -> io::Result<Self> {
        Self::check_support()?;
        Self::attach_to(cgroups.unified_folder())
    }

    /// Attaches the programs for this process alone.
    ///
    /// # Errors
    /// As [`Self::check_support`], without the check of the kernel's count.
    pub fn attach_to_own_group() -> io::Result<Self> {
        Self::attach_to(None)
    }

    /// Checks that redirection works here, on a connection of this process to itself.
    ///
    /// # Errors
    /// Fails if this build has no BPF programs, without `CAP_BPF` and `CAP_NET_ADMIN`, and without a unified
    /// cgroup hierarchy. Fails also with `Unsupported` if the kernel does not count redirected bytes
    /// (FIONREAD): servers such as nginx then wait for bytes that have arrived.
    pub fn check_support() -> io::Result<()> {
        let redirect = Self::attach_to_own_group()?;
        let flags = SocketFlags::CLOEXEC;
        let gateway = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
        redirect.mark_socket(&gateway)?;
        let server = connect_to_itself(&gateway).map_err(|error| connect_error(&error))?;
        send(&gateway, b"request", SendFlags::NOSIGNAL)?;
        if redirect.read_counters().redirected != 1 {
            return Err(io::Error::other("the kernel has not redirected a message"));
        }
        match rustix::io::ioctl_fionread(&server)? {
            7 => Ok(()),
            other => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                format!("the kernel counts {other} of 7 redirected bytes (FIONREAD): update it"),
            )),
        }
    }

    fn attach_to(instances: Option<&Path>) -> io::Result<Self> {
        let own = own_unified_group()?;
        // A program attached to a group runs for the groups below, too.
        let instances = instances.filter(|folder| !folder.starts_with(&own));
        let groups = std::iter::once(own.as_path()).chain(instances);
        let groups: Vec<File> = groups.map(File::open).collect::<io::Result<_>>()?;
        let mut loaded = load_object(object::sock_loopback()?)?;
        // Held until both programs are loaded, which refer to it.
        let sockets = take_map(&mut loaded, "sockets")?;
        attach_verdict(&mut loaded, &sockets)?;
        attach_sock_ops(&mut loaded, "follow_connection", &groups)?;
        Ok(Self {
            ends: Mutex::new(take_map(&mut loaded, "ends")?),
            counters: take_map(&mut loaded, "counters")?,
            next_connection_id: AtomicU64::new(1),
            _loaded: loaded,
        })
    }

    /// Marks a socket of the gateway that is not connected yet. What it and its peer send is
    /// redirected, if its peer is inside the same network namespace.
    ///
    /// # Errors
    /// Fails when the kernel has no memory for it.
    pub fn mark_socket(&self, socket: impl AsFd) -> io::Result<()> {
        let end = ConnectionEnd {
            connection_id: self.next_connection_id.fetch_add(1, Ordering::Relaxed),
            side: GATEWAY,
            padding: 0,
        };
        let mut ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        let marked = ends.insert(&socket.as_fd().as_raw_fd(), end, 0);
        marked.map_err(|error| bpf_error(&error))
    }

    /// Returns the outcomes so far.
    pub fn read_counters(&self) -> LoopbackCounters {
        LoopbackCounters {
            connections: sum_counter(&self.counters, 0),
            redirected: sum_counter(&self.counters, 1),
            over_tcp: sum_counter(&self.counters, 2),
        }
    }
}

impl fmt::Debug for LoopbackRedirect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoopbackRedirect").finish_non_exhaustive()
    }
}

/// Connects a socket to this process. Returns the other end.
fn connect_to_itself(gateway: &OwnedFd) -> io::Result<TcpStream> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    // connect() takes the limit of sends, accept() that of receives (socket(7)).
    set_socket_timeout(gateway, Timeout::Send, Some(CHECK_TIMEOUT))?;
    set_socket_timeout(&listener, Timeout::Recv, Some(CHECK_TIMEOUT))?;
    connect(gateway, &listener.local_addr()?)?;
    Ok(listener.accept()?.0)
}

/// Explains why there is no connection over the loopback device.
fn connect_error(error: &io::Error) -> io::Error {
    let text = "no connection over the loopback device";
    match Errno::from_io_error(error) {
        Some(Errno::INPROGRESS | Errno::AGAIN) => {
            let text = format!("{text} within {CHECK_TIMEOUT:?}: check the packet filter");
            io::Error::new(io::ErrorKind::TimedOut, text)
        }
        _ => io::Error::new(error.kind(), format!("{text}: {error}")),
    }
}

/// Attaches the program that decides over each message to the sockets of its map.
fn attach_verdict(loaded: &mut Ebpf, sockets: &SockHash<MapData, ConnectionEnd>) -> io::Result<()> {
    let program: &mut SkMsg = object::program(loaded, "redirect_message")?;
    program.load().map_err(|error| bpf_error(&error))?;
    let attached = program.attach(sockets.fd());
    attached.map(drop).map_err(|error| bpf_error(&error))
}

#[cfg(test)]
mod tests {
    use super::super::btf::{assert_layout, layout};
    use super::*;

    #[test]
    fn map_entries_are_laid_out_as_in_c() {
        assert_layout(
            object::sock_loopback(),
            "connection_end",
            layout!(ConnectionEnd: connection_id, side, padding),
        );
    }
}
