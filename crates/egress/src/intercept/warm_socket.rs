//! A connection that may be given away.

use std::io;
use std::os::fd::OwnedFd;

use nearpath_kernel::sockets::{SocketIdentity, is_filter_locked, lock_to_peer};

use nearpath_connpool::pool::LeaseGuard;

/// A connected socket that nobody has used. Dropped, it is closed.
#[derive(Debug)]
pub struct WarmSocket {
    socket: OwnedFd,
    identity: SocketIdentity,
    guard: LeaseGuard,
}

impl WarmSocket {
    /// Prepares a connected socket for being given: from now on it hears its peer alone. To be done when the connection is made, not when it is given:
    /// it costs some microseconds. It must not be registered with a runtime any more when it is given.
    ///
    /// # Errors
    /// When the socket is not connected.
    pub fn new(socket: OwnedFd, gone: LeaseGuard) -> io::Result<Self> {
        if !is_filter_locked(&socket) {
            lock_to_peer(&socket)?;
        }
        Ok(Self {
            identity: SocketIdentity::of(&socket)?,
            socket,
            guard: gone,
        })
    }

    /// Names it towards the kernel.
    pub fn identity(&self) -> SocketIdentity {
        self.identity
    }

    /// The socket, for whoever carries bytes over it instead of giving it away.
    pub fn into_parts(self) -> (OwnedFd, LeaseGuard) {
        (self.socket, self.guard)
    }
}
