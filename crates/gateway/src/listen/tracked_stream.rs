//! Stream that reports reads and writes to its [`ConnState`], and returns the bytes of the
//! protocol detection first.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::conn_state::ConnState;
use super::control_frames::ControlFrameBudget;

/// Stream with timeouts and unread bytes.
pub(super) struct TrackedStream<T> {
    io: T,
    unread: Bytes,
    state: Arc<ConnState>,
    /// Boxed: connections of HTTP/1 have none.
    control_frames: Option<Box<ControlFrameBudget>>,
}

impl<T> TrackedStream<T> {
    /// Wraps `io`, of which `unread` was read already.
    pub(super) fn new(io: T, unread: Bytes, state: Arc<ConnState>) -> Self {
        Self {
            io,
            unread,
            state,
            control_frames: None,
        }
    }

    /// Declares that the bytes are HTTP/2, so that a flood of control frames cuts the connection.
    pub(super) fn with_control_frame_limit(self) -> Self {
        let budget = ControlFrameBudget::new(self.state.current_tick());
        Self {
            control_frames: Some(Box::new(budget)),
            ..self
        }
    }

    /// Returns the stream itself, of which reads and writes are not reported.
    pub(super) fn get_mut(&mut self) -> &mut T {
        &mut self.io
    }

    /// Takes the unread bytes.
    pub(super) fn take_unread(&mut self) -> Bytes {
        std::mem::take(&mut self.unread)
    }

    /// Puts bytes back, to be read before all others.
    pub(super) fn put_back(&mut self, unread: Bytes) {
        self.unread = unread;
    }

    fn note_written(&mut self, polled: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        self.state.note_write(polled.is_ready());
        if let (Some(budget), Poll::Ready(Ok(n))) = (&mut self.control_frames, &polled) {
            budget.note_written(*n);
        }
        polled
    }

    /// Notes bytes for the limit of control frames. Returns whether the connection goes on.
    fn allow_frames(&mut self, bytes: &[u8]) -> bool {
        let now = self.state.current_tick();
        let budget = self.control_frames.as_mut();
        let is_allowed = budget.is_none_or(|budget| budget.note_read(bytes, now));
        if !is_allowed {
            self.state.cut_connection();
        }
        is_allowed
    }
}

impl<T: AsyncRead + Unpin> TrackedStream<T> {
    fn poll_read_bytes(
        &mut self,
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

impl<T: AsyncRead + Unpin> AsyncRead for TrackedStream<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = self.poll_read_bytes(cx, buf);
        if self.allow_frames(&buf.filled()[before..]) {
            polled
        } else {
            Poll::Pending // the cut wakes the task
        }
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
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
