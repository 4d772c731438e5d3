//! Client connection with TLS, which a task or a handler of the event loop has.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::server::TlsStream;

use super::client_socket::ClientSocket;
use super::client_transport::{ClientTransport, InlineSocket};

/// Connection after its handshake; `None` while a handler of the event loop has it. In a box: it moves
/// between both.
pub(super) struct EncryptedSocket(Option<Box<TlsStream<ClientSocket>>>);

impl EncryptedSocket {
    pub(super) fn new(stream: TlsStream<ClientSocket>) -> Self {
        Self(Some(Box::new(stream)))
    }

    fn stream(&mut self) -> io::Result<Pin<&mut TlsStream<ClientSocket>>> {
        let stream = self.0.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        Ok(Pin::new(stream))
    }
}

impl ClientTransport for EncryptedSocket {
    fn take_socket(&mut self) -> io::Result<InlineSocket> {
        self.stream()?.get_mut().get_mut().0.register()?;
        let stream = self.0.take().ok_or(io::ErrorKind::NotConnected)?;
        Ok(InlineSocket::Encrypted(stream))
    }

    fn restore_socket(&mut self, socket: InlineSocket) {
        // The other kind cannot come: this transport did not give it.
        if let InlineSocket::Encrypted(stream) = socket {
            self.0 = Some(stream);
        }
    }
}

impl AsyncRead for EncryptedSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.stream()?.poll_read(cx, buf)
    }
}

impl AsyncWrite for EncryptedSocket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.stream()?.poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.stream()?.poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream()?.poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream()?.poll_shutdown(cx)
    }
}
