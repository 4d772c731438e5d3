//! Handover between two processes on one data directory (`--take-over`): an upgrade that loses no
//! call.
//!
//! ```text
//! new process                        old process, on the socket `successor` in its data directory
//!   Offer     ──────────────────►
//!             ◄──────────────────   its listening sockets, and the steering of QUIC packets           InheritedSockets
//!   Release   ──────────────────►   accepts no more changes, closes the store; calls continue
//!             ◄──────────────────   released
//!   opens the store, starts instances, begins to serve, steers new connections to itself
//!   Go        ──────────────────►   finishes running requests and exits
//! ```
//!
//! Until `Go`, a death of the new process loses nothing: the old one goes on serving. TCP
//! connections stay with the process that accepted them. QUIC connections have no socket of their
//! own; [`UdpPort`] keeps them apart.

mod inherited;
mod message;
mod successor;
mod udp_port;
mod wait_ready;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use rustix::process::{PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};

pub(crate) use inherited::{InheritedSockets, SocketName};
pub(crate) use successor::SuccessorListener;
pub(crate) use udp_port::{UdpPort, UdpProtocol};
pub(crate) use wait_ready::wait_ready;

/// Longest wait for the other process's next message.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);

/// Requests of the new process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum HandoverRequest {
    /// Send the sockets.
    Offer,
    /// Unlock the data directory.
    Release,
    /// Exit: the new process serves.
    Go,
}

/// The connection to the process that is being replaced.
#[derive(Debug)]
pub(crate) struct OldProcess(OwnedFd);

impl OldProcess {
    /// Connects to the process that owns the data directory, and receives its sockets. `None`:
    /// there is no such process.
    ///
    /// # Errors
    /// When the process does not reply, or its version speaks another protocol.
    pub(crate) fn connect(data_dir: &Path) -> io::Result<Option<(Self, InheritedSockets)>> {
        let socket = new_socket()?;
        match rustix::net::connect(&socket, &SocketAddrUnix::new(socket_path(data_dir))?) {
            // A socket file without a listener is left by a process that was killed.
            Err(Errno::NOENT | Errno::CONNREFUSED) => return Ok(None),
            connected => connected?,
        }
        set_timeouts(&socket)?;
        message::send(&socket, &HandoverRequest::Offer, &[])?;
        let inherited = InheritedSockets::receive(&socket)?;
        Ok(Some((Self(socket), inherited)))
    }

    /// Makes the old process unlock the data directory. From then on it accepts no changes.
    ///
    /// # Errors
    /// When it does not reply.
    pub(crate) fn release(&self) -> io::Result<()> {
        message::send(&self.0, &HandoverRequest::Release, &[])?;
        message::receive::<()>(&self.0).map(drop)
    }

    /// Lets the old process exit. `on_exit` runs on a thread of its own once the process has ended
    /// for any reason.
    pub(crate) fn finish(self, on_exit: impl FnOnce() + Send + 'static) {
        if let Err(error) = message::send(&self.0, &HandoverRequest::Go, &[]) {
            tracing::warn!(%error, "handover: the old process has exited already");
        }
        // The pid as the kernel recorded it at connect; the process still runs, as it holds the
        // socket.
        let process = sockopt::socket_peercred(&self.0)
            .and_then(|peer| pidfd_open(peer.pid, PidfdFlags::empty()));
        let wait = move || {
            if let Ok(process) = process {
                // A pidfd becomes readable when its process ends (pidfd_open(2)).
                while poll(&mut [PollFd::new(&process, PollFlags::IN)], None) == Err(Errno::INTR) {}
            }
            on_exit();
        };
        if let Err(error) = std::thread::Builder::new()
            .name("old-process".to_owned())
            .spawn(wait)
        {
            tracing::warn!(%error, "handover: cannot remove files of the old process, the next start retries");
        }
    }
}

/// Path of the socket on which a process waits for its successor.
fn socket_path(data_dir: &Path) -> PathBuf {
    data_dir.join("successor")
}

fn new_socket() -> io::Result<OwnedFd> {
    // Seqpacket keeps each message together with its descriptors.
    Ok(socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?)
}

fn set_timeouts(socket: &OwnedFd) -> io::Result<()> {
    for side in [Timeout::Recv, Timeout::Send] {
        set_socket_timeout(socket, side, Some(REPLY_TIMEOUT))?;
    }
    Ok(())
}

/// Another descriptor of the same socket.
fn duplicate(socket: impl AsFd) -> io::Result<OwnedFd> {
    socket.as_fd().try_clone_to_owned()
}
