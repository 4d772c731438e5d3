//! Socket to a server: in clear to a function's own port, over TLS to another node.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::BytesMut;
use nearpath_wire::mtls::CallerStream;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::event_loop::{PolledSocket, Poller, try_read_decrypted, try_write_encrypted};

/// Socket to a server, for tasks and for handlers of the event loop.
pub(super) enum ServerSocket {
    /// In clear.
    Clear(PolledSocket),
    /// Over TLS, after the handshake.
    Encrypted(Box<CallerStream<PolledSocket>>),
}

impl ServerSocket {
    /// Returns the socket that the event loop watches.
    pub(super) fn polled(&self) -> &PolledSocket {
        match self {
            Self::Clear(socket) => socket,
            Self::Encrypted(stream) => stream.get_ref().0,
        }
    }

    /// Moves the socket to another event loop, if it is not there.
    ///
    /// # Errors
    /// If the kernel cannot watch it.
    pub(super) fn move_to(&mut self, poller: &Poller) -> io::Result<()> {
        match self {
            Self::Clear(socket) => socket.move_to(poller),
            Self::Encrypted(stream) => stream.get_mut().0.move_to(poller),
        }
    }

    /// Returns why the server has refused the certificate of this side.
    pub(super) fn refusal(&self) -> Option<String> {
        match self {
            Self::Clear(_) => None,
            Self::Encrypted(stream) => stream.verdict().refusal(),
        }
    }

    /// Returns whether written bytes wait for room in the socket.
    pub(super) fn has_unsent_bytes(&self) -> bool {
        match self {
            Self::Clear(_) => false,
            Self::Encrypted(stream) => stream.get_ref().1.wants_write(),
        }
    }

    /// Returns whether the TLS session has neither bytes for the reader nor an end.
    pub(super) fn is_session_silent(&self) -> bool {
        match self {
            Self::Clear(_) => true,
            Self::Encrypted(stream) => stream.get_ref().1.wants_read(),
        }
    }

    /// Returns whether the connection is open, and no byte of a response has come.
    pub(super) fn is_open_and_silent(&mut self) -> bool {
        match self {
            Self::Clear(socket) => {
                let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
                recv(&*socket, &mut [0; 1], flags) == Err(Errno::AGAIN)
            }
            // Records without data may have come: sessions, for example.
            Self::Encrypted(_) => {
                let read = self.try_read(&mut BytesMut::new());
                read.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
            }
        }
    }

    /// Reads once without waiting, behind the bytes in `buffer`; 0: the server has closed.
    ///
    /// # Errors
    /// `WouldBlock`; of the connection.
    pub(super) fn try_read(&mut self, buffer: &mut BytesMut) -> io::Result<usize> {
        match self {
            Self::Clear(socket) => socket.try_read(buffer),
            Self::Encrypted(stream) => {
                let (socket, session) = stream.get_mut();
                let read = try_read_decrypted(session, socket, buffer);
                read.inspect_err(|error| stream.note_error(error))
            }
        }
    }

    /// Writes bytes in parts, once without waiting; returns their length.
    ///
    /// # Errors
    /// `WouldBlock`; of the connection.
    pub(super) fn try_write(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match (self, parts) {
            // One buffer costs the kernel less than a vector.
            (Self::Clear(socket), [part]) => socket.try_write(part),
            (Self::Clear(socket), parts) => socket.try_write_vectored(parts),
            (Self::Encrypted(stream), parts) => {
                let (socket, session) = stream.get_mut();
                try_write_encrypted(session, socket, parts)
            }
        }
    }
}

impl AsyncRead for ServerSocket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Clear(socket) => Pin::new(socket).poll_read(cx, buf),
            Self::Encrypted(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for ServerSocket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Clear(socket) => Pin::new(socket).poll_write(cx, bytes),
            Self::Encrypted(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Clear(socket) => Pin::new(socket).poll_write_vectored(cx, parts),
            Self::Encrypted(stream) => Pin::new(stream).poll_write_vectored(cx, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Clear(socket) => Pin::new(socket).poll_flush(cx),
            Self::Encrypted(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Clear(socket) => Pin::new(socket).poll_shutdown(cx),
            Self::Encrypted(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
