//! A connection that may be handed over.

use std::io;
use std::os::fd::OwnedFd;

use nearpath_kernel::sockets::{SocketIdentity, is_filter_locked, lock_to_peer};

use nearpath_connpool::pool::LeaseGuard;

/// A connected, unused socket. Closed on drop.
#[derive(Debug)]
pub struct WarmSocket {
    socket: OwnedFd,
    identity: SocketIdentity,
    guard: LeaseGuard,
}

impl WarmSocket {
    /// Locks a connected socket to its peer. Do it when the connection is made, because it costs
    /// some microseconds. The socket must not be registered with a runtime any more when it is
    /// handed over.
    ///
    /// # Errors
    /// When the socket is not connected.
    pub fn new(socket: OwnedFd, guard: LeaseGuard) -> io::Result<Self> {
        // The pool locks sockets when it dials; sockets of other sources are locked here.
        if !is_filter_locked(&socket) {
            lock_to_peer(&socket)?;
        }
        Ok(Self {
            identity: SocketIdentity::of(&socket)?,
            socket,
            guard,
        })
    }

    /// Returns the kernel's identity of the socket.
    pub fn identity(&self) -> SocketIdentity {
        self.identity
    }

    /// Splits into the socket and its guard, for callers that use the connection themselves.
    pub fn into_parts(self) -> (OwnedFd, LeaseGuard) {
        (self.socket, self.guard)
    }
}
