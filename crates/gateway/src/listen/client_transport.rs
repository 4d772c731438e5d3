//! Transport of a client connection, which a task or a handler of the event loop has.

use std::io::{self, IoSlice};

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::server::TlsStream;

use super::accepted_socket::AcceptedSocket;
use super::client_socket::ClientSocket;
use crate::event_loop::{PolledSocket, Poller, Token, try_read_decrypted, try_write_encrypted};

/// Transport of a client connection.
pub(super) trait ClientTransport: AsyncRead + AsyncWrite + Unpin {
    /// Takes the socket for a handler of the event loop.
    ///
    /// # Errors
    /// If the kernel cannot watch the socket.
    fn take_socket(&mut self) -> io::Result<InlineSocket>;

    /// Returns a socket that was taken.
    fn restore_socket(&mut self, socket: InlineSocket);
}

impl ClientTransport for ClientSocket {
    fn take_socket(&mut self) -> io::Result<InlineSocket> {
        self.take().map(InlineSocket::Clear)
    }

    fn restore_socket(&mut self, socket: InlineSocket) {
        // The other kind cannot come: this transport did not give it.
        if let InlineSocket::Clear(socket) = socket {
            self.restore(socket);
        }
    }
}

/// Socket of a client as a handler of the event loop uses it.
pub(super) enum InlineSocket {
    /// Without TLS.
    Clear(AcceptedSocket),
    /// With TLS, after its handshake. Registered.
    Encrypted(Box<TlsStream<ClientSocket>>),
}

impl InlineSocket {
    /// Registers the socket, if it is not.
    ///
    /// # Errors
    /// If the kernel cannot watch it.
    pub(super) fn register(self, poller: &Poller) -> io::Result<Self> {
        match self {
            Self::Clear(socket) => socket.register(poller).map(Self::Clear),
            encrypted @ Self::Encrypted(_) => Ok(encrypted),
        }
    }

    /// Returns the registered socket.
    pub(super) fn registered(&self) -> Option<&PolledSocket> {
        match self {
            Self::Clear(socket) => socket.registered(),
            Self::Encrypted(stream) => stream.get_ref().0.registered(),
        }
    }

    /// Returns whether an event with this token is the socket's.
    pub(super) fn has_token(&self, token: Token) -> bool {
        self.registered().map(PolledSocket::token) == Some(token)
    }

    /// Returns whether a read may return bytes for which no event will come.
    pub(super) fn may_be_readable(&self) -> bool {
        match self {
            Self::Clear(_) => self.registered().is_some_and(PolledSocket::may_be_readable),
            Self::Encrypted(_) => true, // the session may have bytes
        }
    }

    /// Returns whether written bytes wait for room in the socket.
    pub(super) fn has_unsent_bytes(&self) -> bool {
        match self {
            Self::Clear(_) => false,
            Self::Encrypted(stream) => stream.get_ref().1.wants_write(),
        }
    }

    /// Returns whether the client has ended its direction of TLS, which was read with its last bytes.
    pub(super) fn has_ended(&self) -> bool {
        match self {
            Self::Clear(_) => false, // an event tells
            Self::Encrypted(stream) => !stream.get_ref().1.wants_read(),
        }
    }

    /// Reads what has arrived, once, behind the bytes in `buffer`. 0: the caller has ended its direction.
    ///
    /// # Errors
    /// `WouldBlock` if nothing has arrived; of the connection.
    pub(super) fn try_read(&mut self, buffer: &mut BytesMut) -> io::Result<usize> {
        match self {
            Self::Clear(socket) => socket.try_read(buffer),
            Self::Encrypted(stream) => {
                let (socket, session) = stream.get_mut();
                try_read_decrypted(session, socket.require_registered()?, buffer)
            }
        }
    }

    /// Writes bytes in parts, once.
    ///
    /// # Errors
    /// `WouldBlock` if the socket takes nothing; of the connection.
    pub(super) fn try_write(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match (self, parts) {
            // One buffer costs the kernel less than a vector.
            (Self::Clear(socket), [part]) => socket.try_write(part),
            (Self::Clear(socket), parts) => socket.try_write_vectored(parts),
            (Self::Encrypted(stream), parts) => {
                let (socket, session) = stream.get_mut();
                try_write_encrypted(session, socket.require_registered()?, parts)
            }
        }
    }
}
