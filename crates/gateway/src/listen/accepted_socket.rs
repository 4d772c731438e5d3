//! TCP socket of a caller, registered with the event loop or not yet.

use std::io::{self, IoSlice, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};

use bytes::BytesMut;
use nearpath_wire::lingering_close::UnreadInput;
use rustix::net::{RecvFlags, recv};

use crate::event_loop::{PolledSocket, Poller, receive, retry_interrupted};

/// Non-blocking TCP socket of a caller.
pub(super) enum AcceptedSocket {
    /// Not registered: no event tells what it is ready for.
    Unregistered(TcpStream),
    /// Registered with the thread's event loop.
    Registered(PolledSocket),
}

impl AcceptedSocket {
    /// Registers the socket, if it is not.
    ///
    /// # Errors
    /// If the kernel cannot watch it.
    pub(super) fn register(self, poller: &Poller) -> io::Result<Self> {
        match self {
            Self::Unregistered(socket) => {
                Ok(Self::Registered(PolledSocket::register(socket, poller)?))
            }
            registered @ Self::Registered(_) => Ok(registered),
        }
    }

    /// Returns the registered socket.
    pub(super) fn registered(&self) -> Option<&PolledSocket> {
        match self {
            Self::Unregistered(_) => None,
            Self::Registered(socket) => Some(socket),
        }
    }

    /// Reads what has arrived, once, behind the bytes in `buffer`. 0: the caller has ended its direction.
    ///
    /// # Errors
    /// `WouldBlock` if nothing has arrived; of the connection.
    pub(super) fn try_read(&self, buffer: &mut BytesMut) -> io::Result<usize> {
        match self {
            Self::Unregistered(socket) => receive(socket, buffer),
            Self::Registered(socket) => socket.try_read(buffer),
        }
    }

    /// Writes once.
    ///
    /// # Errors
    /// `WouldBlock` if the socket takes nothing; of the connection.
    pub(super) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Unregistered(socket) => retry_interrupted(|| (&mut &*socket).write(bytes)),
            Self::Registered(socket) => socket.try_write(bytes),
        }
    }

    /// Writes bytes in parts, once.
    ///
    /// # Errors
    /// `WouldBlock` if the socket takes nothing; of the connection.
    pub(super) fn try_write_vectored(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Unregistered(socket) => {
                retry_interrupted(|| (&mut &*socket).write_vectored(parts))
            }
            Self::Registered(socket) => socket.try_write_vectored(parts),
        }
    }

    /// Returns whether the caller may be sending more than was read. A close would then reset the
    /// connection, and perhaps overtake the last response.
    pub(super) fn has_unread_input(&self, unread: &UnreadInput) -> bool {
        unread.is_unread() || self.has_unread_bytes()
    }

    fn has_unread_bytes(&self) -> bool {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        recv(self, &mut [0; 1], flags).is_ok_and(|(_, queued)| queued > 0)
    }
}

impl AsFd for AcceptedSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unregistered(socket) => socket.as_fd(),
            Self::Registered(socket) => socket.as_fd(),
        }
    }
}
