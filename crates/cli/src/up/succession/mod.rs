//! An upgrade: a process takes over from the one that has the data directory (`--take-over`), and no call is lost.
//!
//! ```text
//! new process                          running process, at the socket `successor` in its data directory
//!   offer?      ──────────────────►
//!               ◄──────────────────    its listening sockets, and how datagrams are steered to their process      estate
//!   release     ──────────────────►    takes no more orders, closes the store; calls go on
//!               ◄──────────────────    released
//!   opens the store, starts instances, begins to serve, steers newcomers to itself
//!   go          ──────────────────►    drains: what was asked is answered, then it ends
//! ```
//!
//! Until `go` nothing is lost when the new process dies: the running one serves on. Connections over TCP stay with the process that accepted
//! them; those of HTTP/3 have no socket of their own, [`port`] is about them.

mod estate;
mod heir;
mod packet;
mod port;
mod rise;

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

pub(super) use estate::{Estate, Name};
pub(super) use heir::Heirs;
pub(super) use port::Port;
pub(super) use rise::risen;

/// How long the other side may take for an answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// What the new process says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Word {
    /// What is there to take over?
    Offer,
    /// Let go of the data directory.
    Release,
    /// I serve: end.
    Go,
}

/// The process that is about to be succeeded.
#[derive(Debug)]
pub(super) struct Predecessor(OwnedFd);

impl Predecessor {
    /// The process that has the data directory, and what it offers. `None`: nobody listens.
    ///
    /// # Errors
    /// When it does not answer, or is of a version that offers something else.
    pub(super) fn ask(data_dir: &Path) -> io::Result<Option<(Self, Estate)>> {
        let socket = socket()?;
        match rustix::net::connect(&socket, &SocketAddrUnix::new(door(data_dir))?) {
            Err(Errno::NOENT | Errno::CONNREFUSED) => return Ok(None),
            connected => connected?,
        }
        for side in [Timeout::Recv, Timeout::Send] {
            set_socket_timeout(&socket, side, Some(PATIENCE))?;
        }
        packet::send(&socket, &Word::Offer, &[])?;
        let estate = Estate::receive(&socket)?;
        Ok(Some((Self(socket), estate)))
    }

    /// Makes it let go of the data directory. From now on it takes no orders.
    ///
    /// # Errors
    /// When it does not answer.
    pub(super) fn release(&self) -> io::Result<()> {
        packet::send(&self.0, &Word::Release, &[])?;
        packet::receive::<()>(&self.0).map(drop)
    }

    /// Lets it end: everything new comes here. `ended` runs on a thread of its own when it has ended, however it did.
    pub(super) fn go(self, ended: impl FnOnce() + Send + 'static) {
        if let Err(error) = packet::send(&self.0, &Word::Go, &[]) {
            tracing::warn!(%error, "the process that was taken over from had ended already");
        }
        let process = sockopt::socket_peercred(&self.0).and_then(|it| pidfd_open(it.pid, PidfdFlags::empty()));
        let wait = move || {
            if let Ok(process) = process {
                // A pidfd is readable from its process's end on (pidfd_open(2)).
                while poll(&mut [PollFd::new(&process, PollFlags::IN)], None) == Err(Errno::INTR) {}
            }
            ended();
        };
        if let Err(error) = std::thread::Builder::new().name("predecessor".to_owned()).spawn(wait) {
            tracing::warn!(%error, "what the process that was taken over from leaves is left to the next start");
        }
    }
}

/// Where a successor knocks.
fn door(data_dir: &Path) -> PathBuf {
    data_dir.join("successor")
}

fn socket() -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// The same socket once more.
fn again(socket: impl AsFd) -> io::Result<OwnedFd> {
    socket.as_fd().try_clone_to_owned()
}
