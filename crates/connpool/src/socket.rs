//! Connections to a destination, plain or through TLS, that count towards its limit.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use crate::fair_turn::count_bytes;
use crate::pool::{ConnectionLease, LeaseGuard, is_quiet};

/// Maximum time that a closed connection waits for the destination to close as well.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// A connection and the guard of its slot.
#[derive(Debug)]
pub struct UpstreamSocket {
    stream: RefCell<UpstreamStream>,
    guard: LeaseGuard,
}

/// Byte stream of a connection.
#[derive(Debug)]
pub enum UpstreamStream {
    /// Plain TCP.
    Plain(TcpStream),
    /// TLS over TCP.
    Tls(Box<TlsStream<TcpStream>>),
}

impl UpstreamSocket {
    /// Wraps a lease without TLS.
    pub fn from_lease(lease: ConnectionLease) -> Self {
        Self {
            stream: RefCell::new(UpstreamStream::Plain(lease.stream)),
            guard: lease.guard,
        }
    }

    /// Wraps a TLS stream over a lease with this guard.
    pub fn from_tls(stream: TlsStream<TcpStream>, guard: LeaseGuard) -> Self {
        Self {
            stream: RefCell::new(UpstreamStream::Tls(Box::new(stream))),
            guard,
        }
    }

    /// Splits into the stream and the guard, which must outlive the stream.
    pub fn into_parts(self) -> (UpstreamStream, LeaseGuard) {
        (self.stream.into_inner(), self.guard)
    }

    /// Returns true if the connection is open and has nothing to read. TLS session tickets, which
    /// servers send at any time, are consumed and do not count.
    pub fn is_quiet(&self) -> bool {
        let mut stream = self.stream.borrow_mut();
        match &mut *stream {
            UpstreamStream::Plain(stream) => is_quiet(stream),
            UpstreamStream::Tls(stream) => {
                // A poll decrypts pending records, so session tickets are consumed here. Nothing
                // waits, so no waker is needed.
                let (mut byte, mut cx) = ([0], Context::from_waker(Waker::noop()));
                let pending = Pin::new(&mut **stream)
                    .poll_read(&mut cx, &mut ReadBuf::new(&mut byte))
                    .is_pending();
                pending && is_quiet(stream.get_ref().0)
            }
        }
    }

    /// Returns true if the destination's name still resolves to the peer.
    pub fn is_binding_current(&self) -> bool {
        self.guard.is_binding_current()
    }

    /// Returns a duplicate descriptor for status queries while another task reads.
    ///
    /// # Errors
    /// When the process has no more descriptors.
    pub fn duplicate_fd(&self) -> io::Result<OwnedFd> {
        match &*self.stream.borrow() {
            UpstreamStream::Plain(stream) => stream.as_fd().try_clone_to_owned(),
            UpstreamStream::Tls(stream) => stream.get_ref().0.as_fd().try_clone_to_owned(),
        }
    }

    /// Sends `message`, closes, and keeps the slot below the limit until the destination has closed
    /// too.
    pub async fn close_with_message(mut self, message: &[u8]) {
        // `TCP_INFO` describes the path only while the connection is open.
        match self.stream.get_mut() {
            UpstreamStream::Plain(stream) => self.guard.sample_flow(stream),
            UpstreamStream::Tls(stream) => self.guard.sample_flow(stream.get_ref().0),
        }
        let closing = async {
            self.write_all(message).await?;
            self.shutdown().await?;
            // Reading to the end waits for the peer's FIN. A close with unread bytes would send a
            // reset.
            let mut rest = vec![0; 64 * 1024];
            while self.read(&mut rest).await? > 0 {}
            io::Result::Ok(())
        };
        // The connection is closed in any case; errors and the timeout change nothing.
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, closing).await;
        // The socket first: the slot is free only when the connection is closed.
        drop(self.stream);
        drop(self.guard);
    }
}

impl AsFd for UpstreamStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Plain(stream) => stream.as_fd(),
            Self::Tls(stream) => stream.get_ref().0.as_fd(),
        }
    }
}

impl AsyncRead for UpstreamStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        let read = match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, into),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, into),
        };
        count_bytes(cx, into.filled().len() - before);
        read
    }
}

impl AsyncWrite for UpstreamStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        };
        if let Poll::Ready(Ok(bytes)) = written {
            count_bytes(cx, bytes);
        }
        written
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

impl AsyncRead for UpstreamSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(self.stream.get_mut()).poll_read(cx, into)
    }
}

impl AsyncWrite for UpstreamSocket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(self.stream.get_mut()).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.stream.get_mut()).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.stream.get_mut()).poll_shutdown(cx)
    }
}
