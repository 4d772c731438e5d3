//! `AsyncRead` and `AsyncWrite` of a migrating stream.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker, ready};

use bytes::{Buf, Bytes};
use futures_util::SinkExt;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::MigratingStream;
use crate::migrate::relay::StreamFrame;
use crate::migrate::stream_switch::ReadSource;

impl MigratingStream {
    /// Writes one frame, as far as there is capacity.
    ///
    /// Each write is one frame, because each frame costs a message of the control connection.
    fn poll_relay_write(&mut self, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let waker = Waker::from(Arc::clone(&self.wakers));
        let cx = &mut Context::from_waker(&waker);
        // After the end message any byte would be a protocol error at the peer.
        let Some(relay) = self.relay.as_mut().filter(|_| !self.switch.has_ended()) else {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        };
        let capacity = ready!(relay.poll_capacity(cx))?;
        let frame = gather(bufs, capacity);
        let written = frame.len();
        if written > 0 {
            relay.start_send_unpin(StreamFrame::Bytes(frame))?;
            self.switch.count_sent(written);
            self.relayed_bytes
                .sent
                .fetch_add(written as u64, Ordering::Relaxed);
            let _ = self.flush_relay(cx); // as a socket does; the rest goes with the next poll
        }
        Poll::Ready(Ok(written))
    }

    /// Drives the stream for a writer.
    ///
    /// `true`: write to the direct connection; `None`: wait for it.
    fn poll_write_path(&mut self, cx: &Context<'_>) -> io::Result<Option<bool>> {
        // A settled stream skips all this: then a write costs what the socket's write costs.
        if !self.settled {
            self.wakers.register_writer(cx.waker());
            self.drive_io()?;
        }
        if self.switch.writes_direct() {
            // The switch message goes before the first direct byte: a peer that never reads it
            // would wait forever.
            return Ok((self.direct.is_some() && self.pending_message.is_none()).then_some(true));
        }
        // An error of the sink is reported once, to the writer that needs it.
        self.write_error.take().map_or(Ok(Some(false)), Err)
    }

    fn poll_relay_flush(&mut self) -> Poll<io::Result<()>> {
        self.drive_io()?;
        let waker = Waker::from(Arc::clone(&self.wakers));
        let cx = &mut Context::from_waker(&waker);
        if self.pending_message.is_some() || !self.flush_relay(cx) {
            return Poll::Pending;
        }
        Poll::Ready(self.write_error.take().map_or(Ok(()), Err))
    }
}

/// Copies the first bytes of the buffers, at most `max_bytes`.
fn gather(bufs: &[IoSlice<'_>], max_bytes: usize) -> Bytes {
    let all: usize = bufs.iter().map(|buf| buf.len()).sum();
    let mut frame = Vec::with_capacity(all.min(max_bytes));
    for buf in bufs {
        frame.extend_from_slice(&buf[..buf.len().min(max_bytes - frame.len())]);
    }
    frame.into()
}

impl AsyncRead for MigratingStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let stream = self.get_mut();
        if !stream.settled {
            stream.wakers.register_reader(cx.waker());
            stream.drive_io()?;
        }
        // Bytes that the relay delivered come before those of the direct connection.
        if !stream.unread.is_empty() {
            let n = stream.unread.len().min(buf.remaining());
            buf.put_slice(&stream.unread[..n]);
            stream.unread.advance(n);
            return Poll::Ready(Ok(()));
        }
        match (stream.switch.read_source(), stream.direct()) {
            (ReadSource::Direct, Some(direct)) => direct.poll_read(cx, buf),
            // The end message was read: what the direct connection holds is not part of the stream.
            (ReadSource::End, _) => Poll::Ready(Ok(())),
            _ => Poll::Pending,
        }
    }
}

impl AsyncWrite for MigratingStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let stream = self.get_mut();
        match (stream.poll_write_path(cx)?, stream.direct.as_mut()) {
            (Some(true), Some(direct)) => Pin::new(direct).poll_write(cx, buf),
            (Some(false), _) => stream.poll_relay_write(&[IoSlice::new(buf)]),
            _ => Poll::Pending,
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let stream = self.get_mut();
        match (stream.poll_write_path(cx)?, stream.direct.as_mut()) {
            (Some(true), Some(direct)) => Pin::new(direct).poll_write_vectored(cx, bufs),
            (Some(false), _) => stream.poll_relay_write(bufs),
            _ => Poll::Pending,
        }
    }

    fn is_write_vectored(&self) -> bool {
        !self.settled
            || self
                .direct
                .as_ref()
                .is_some_and(|direct| direct.is_write_vectored())
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let stream = self.get_mut();
        match (stream.poll_write_path(cx)?, stream.direct.as_mut()) {
            (Some(true), Some(direct)) => Pin::new(direct).poll_flush(cx),
            (Some(false), _) => stream.poll_relay_flush(),
            _ => Poll::Pending,
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let stream = self.get_mut();
        let ready = stream.poll_write_path(cx)?;
        // Only an end on the relay needs a message; a socket signals its own end.
        if stream.pending_message.is_none() {
            stream.pending_message = stream.switch.end_outgoing();
        }
        match (ready, stream.direct.as_mut()) {
            (Some(true), Some(direct)) => Pin::new(direct).poll_shutdown(cx),
            (Some(false), _) => stream.poll_relay_flush(),
            _ => Poll::Pending,
        }
    }
}
