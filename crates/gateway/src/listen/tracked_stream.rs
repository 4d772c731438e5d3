//! Stream that reports reads and writes to its [`ConnState`], and returns the bytes of the
//! protocol detection first.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::conn_state::ConnState;

/// Stream with timeouts and unread bytes.
pub(super) struct TrackedStream<T> {
    io: T,
    unread: Bytes,
    state: Arc<ConnState>,
    closed_by_drop: bool,
}

impl<T> TrackedStream<T> {
    /// Wraps `io`, of which `unread` was read already.
    pub(super) fn new(io: T, unread: Bytes, state: Arc<ConnState>) -> Self {
        Self {
            io,
            unread,
            state,
            closed_by_drop: false,
        }
    }

    /// Declares that dropping the stream is enough to close it, as for a plain socket: close(2)
    /// sends buffered data and then FIN, like shutdown(2). After an upgrade it is shut down
    /// nevertheless, because its other half goes on.
    pub(super) fn closed_by_drop(self) -> Self {
        Self {
            closed_by_drop: true,
            ..self
        }
    }

    /// Takes the unread bytes.
    pub(super) fn take_unread(&mut self) -> Bytes {
        std::mem::take(&mut self.unread)
    }

    /// Puts bytes back, to be read before all others.
    pub(super) fn put_back(&mut self, unread: Bytes) {
        self.unread = unread;
    }

    fn note_written(&self, polled: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        self.state.note_write(polled.is_ready());
        polled
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for TrackedStream<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.unread.is_empty() {
            let n = self.unread.len().min(buf.remaining());
            buf.put_slice(&self.unread[..n]);
            self.unread.advance(n);
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.io).poll_read(cx, buf);
        // End of file is ready too, but is no progress of a request head.
        if buf.filled().len() > before {
            self.state.note_read();
        }
        polled
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for TrackedStream<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.io).poll_write(cx, buf);
        self.note_written(polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.io).poll_write_vectored(cx, bufs);
        self.note_written(polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.closed_by_drop && !self.state.has_http_ended() {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
