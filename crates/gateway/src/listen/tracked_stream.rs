//! A connection that tells its [`Life`] what happens, and replays what was read while its protocol was told.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::conn_state::Life;

/// See the module.
pub(super) struct Watched<T> {
    io: T,
    replay: Bytes,
    life: Arc<Life>,
    closed_by_drop: bool,
}

impl<T> Watched<T> {
    /// Watches `io`, of which `replay` was read already.
    pub(super) fn new(io: T, replay: Bytes, life: Arc<Life>) -> Self {
        Self { io, replay, life, closed_by_drop: false }
    }

    /// Dropping it is enough to end it, as with a plain socket: close(2) sends what is buffered and then FIN, as shutdown(2)
    /// before it would. After an upgrade it is shut down nevertheless, for its other half goes on.
    pub(super) fn closed_by_drop(self) -> Self {
        Self { closed_by_drop: true, ..self }
    }

    /// What is to be replayed, which then is not.
    pub(super) fn take_replay(&mut self) -> Bytes {
        std::mem::take(&mut self.replay)
    }

    /// Gives `seen` back: it is read again before all else.
    pub(super) fn replay(&mut self, seen: Bytes) {
        self.replay = seen;
    }

    fn written(&self, polled: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        self.life.wrote(polled.is_ready());
        polled
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Watched<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if !self.replay.is_empty() {
            let n = self.replay.len().min(buf.remaining());
            buf.put_slice(&self.replay[..n]);
            self.replay.advance(n);
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.io).poll_read(cx, buf);
        if buf.filled().len() > before {
            self.life.heard();
        }
        polled
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Watched<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.io).poll_write(cx, buf);
        self.written(polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.io).poll_write_vectored(cx, bufs);
        self.written(polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.closed_by_drop && !self.life.has_ended() {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
