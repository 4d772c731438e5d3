//! A connection to a destination, plain or through TLS, that counts towards its ceiling.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use crate::pool::{ConnectionLease, LeaseGuard, is_quiet};

/// Longest wait for a destination to close what we have closed.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// See the module.
#[derive(Debug)]
pub struct UpstreamSocket {
    stream: RefCell<UpstreamStream>,
    guard: LeaseGuard,
}

/// The bytes of one.
#[derive(Debug)]
pub enum UpstreamStream {
    /// As they go over the network.
    Plain(TcpStream),
    /// Through TLS.
    Tls(Box<TlsStream<TcpStream>>),
}

impl UpstreamSocket {
    /// As the keeper gave it.
    pub fn from_lease(lease: ConnectionLease) -> Self {
        Self {
            stream: RefCell::new(UpstreamStream::Plain(lease.stream)),
            guard: lease.guard,
        }
    }

    /// With TLS on it.
    pub fn from_tls(stream: TlsStream<TcpStream>, guard: LeaseGuard) -> Self {
        Self {
            stream: RefCell::new(UpstreamStream::Tls(Box::new(stream))),
            guard,
        }
    }

    /// The bytes, and what has to be kept until they have ended.
    pub fn into_parts(self) -> (UpstreamStream, LeaseGuard) {
        (self.stream.into_inner(), self.guard)
    }

    /// Whether it is open and there is nothing to read. (Session tickets, which a TLS server sends when it likes, are taken in and are nothing to read.)
    pub fn is_quiet(&self) -> bool {
        let mut stream = self.stream.borrow_mut();
        match &mut *stream {
            UpstreamStream::Plain(stream) => is_quiet(stream),
            UpstreamStream::Tls(stream) => {
                let (mut byte, mut cx) = ([0], Context::from_waker(Waker::noop()));
                let pending = Pin::new(&mut **stream)
                    .poll_read(&mut cx, &mut ReadBuf::new(&mut byte))
                    .is_pending();
                pending && is_quiet(stream.get_ref().0)
            }
        }
    }

    /// Whether it goes to where its destination is now.
    pub fn is_binding_current(&self) -> bool {
        self.guard.is_binding_current()
    }

    /// A duplicate by which the kernel can be asked about the connection while somebody else reads it.
    ///
    /// # Errors
    /// When the process has no more descriptors.
    pub fn duplicate_fd(&self) -> io::Result<OwnedFd> {
        match &*self.stream.borrow() {
            UpstreamStream::Plain(stream) => stream.as_fd().try_clone_to_owned(),
            UpstreamStream::Tls(stream) => stream.get_ref().0.as_fd().try_clone_to_owned(),
        }
    }

    /// Says `words`, if any, closes, and keeps its place below the ceiling until the destination has closed, too.
    pub async fn close_with_message(mut self, words: &[u8]) {
        match self.stream.get_mut() {
            UpstreamStream::Plain(stream) => self.guard.sample_flow(stream),
            UpstreamStream::Tls(stream) => self.guard.sample_flow(stream.get_ref().0),
        }
        let bye = async {
            self.write_all(words).await?;
            self.shutdown().await?;
            let mut rest = vec![0; 64 * 1024];
            while self.read(&mut rest).await? > 0 {}
            io::Result::Ok(())
        };
        // It is closed in any case.
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, bye).await;
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
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, into),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, into),
        }
    }
}

impl AsyncWrite for UpstreamStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
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
