//! TCP socket of a caller, registered with the event loop or not yet, with or without TLS.

use std::io::{self, IoSlice, Write};
use std::net::TcpStream;

use bytes::BytesMut;
use nearpath_wire::lingering_close::UnreadInput;
use rustix::net::{RecvFlags, recv};
use tokio_rustls::server::TlsStream;

use super::client_socket::ClientSocket;
use crate::event_loop::{
    PolledSocket, Poller, Token, receive, retry_interrupted, try_read_decrypted,
    try_write_encrypted,
};

/// Non-blocking TCP socket of a caller.
pub(super) enum AcceptedSocket {
    /// Not registered: no event tells what it is ready for.
    Unregistered(TcpStream),
    /// Registered with the thread's event loop.
    Registered(PolledSocket),
    /// With TLS, after its handshake. Registered.
    Encrypted(Box<TlsStream<ClientSocket>>),
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
            registered => Ok(registered),
        }
    }

    /// Returns the registered socket.
    pub(super) fn registered(&self) -> Option<&PolledSocket> {
        match self {
            Self::Unregistered(_) => None,
            Self::Registered(socket) => Some(socket),
            Self::Encrypted(stream) => stream.get_ref().0.registered(),
        }
    }

    /// Returns whether a read may find something of which no event will tell.
    pub(super) fn may_be_readable(&self) -> bool {
        match self {
            Self::Encrypted(_) => true, // the session may have bytes
            _ => self.registered().is_some_and(PolledSocket::may_be_readable),
        }
    }

    /// Returns whether written bytes wait for room in the socket.
    pub(super) fn has_unsent_bytes(&self) -> bool {
        match self {
            Self::Encrypted(stream) => stream.get_ref().1.wants_write(),
            _ => false,
        }
    }

    /// Returns whether an event with this token is the socket's.
    pub(super) fn has_token(&self, token: Token) -> bool {
        self.registered().map(PolledSocket::token) == Some(token)
    }

    /// Reads what has arrived, once, behind the bytes in `buffer`. 0: the caller has ended its direction.
    ///
    /// # Errors
    /// `WouldBlock` if nothing has arrived; of the connection.
    pub(super) fn try_read(&mut self, buffer: &mut BytesMut) -> io::Result<usize> {
        match self {
            Self::Unregistered(socket) => receive(socket, buffer),
            Self::Registered(socket) => socket.try_read(buffer),
            Self::Encrypted(stream) => {
                let (socket, session) = stream.get_mut();
                try_read_decrypted(session, socket.require_registered()?, buffer)
            }
        }
    }

    /// Writes once.
    ///
    /// # Errors
    /// `WouldBlock` if the socket takes nothing; of the connection.
    pub(super) fn try_write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Unregistered(socket) => retry_interrupted(|| (&mut &*socket).write(bytes)),
            Self::Registered(socket) => socket.try_write(bytes),
            Self::Encrypted(_) => self.try_write_vectored(&[IoSlice::new(bytes)]),
        }
    }

    /// Writes bytes in parts, once.
    ///
    /// # Errors
    /// `WouldBlock` if the socket takes nothing; of the connection.
    pub(super) fn try_write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Unregistered(socket) => {
                retry_interrupted(|| (&mut &*socket).write_vectored(parts))
            }
            Self::Registered(socket) => socket.try_write_vectored(parts),
            Self::Encrypted(stream) => {
                let (socket, session) = stream.get_mut();
                try_write_encrypted(session, socket.require_registered()?, parts)
            }
        }
    }

    /// Returns whether the caller may be sending more than was read. A close would then reset the
    /// connection, and perhaps overtake the last response.
    pub(super) fn has_unread_input(&self, unread: &UnreadInput) -> bool {
        unread.is_unread() || self.has_unread_bytes()
    }

    fn has_unread_bytes(&self) -> bool {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let queued = match self {
            Self::Unregistered(socket) => recv(socket, &mut [0; 1], flags),
            Self::Registered(socket) => recv(socket, &mut [0; 1], flags),
            Self::Encrypted(stream) => return stream.get_ref().0.has_unread_input(),
        };
        queued.is_ok_and(|(_, queued)| queued > 0)
    }
}
