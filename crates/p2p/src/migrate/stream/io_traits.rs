//! A way as its user sees it: a stream of bytes.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker, ready};

use bytes::{Buf, Bytes};
use futures_util::SinkExt;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::Way;
use crate::migrate::relay::Piece;
use crate::migrate::stream_switch::Source;

impl Way {
    /// What is written at once is one piece, as far as there is room: each piece costs a message of the line, or a frame.
    fn poll_relay_write(&mut self, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let waker = Waker::from(Arc::clone(&self.wakers));
        let cx = &mut Context::from_waker(&waker);
        let Some(relay) = self.relay.as_mut().filter(|_| !self.halves.has_ended()) else {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        };
        let room = ready!(relay.poll_room(cx))?;
        let piece = gather(bufs, room);
        let written = piece.len();
        if written > 0 {
            relay.start_send_unpin(Piece::Bytes(piece))?;
            self.halves.sent(written);
            self.relayed.out.fetch_add(written as u64, Ordering::Relaxed);
            let _ = self.is_flushed(cx); // as a socket does; what does not go now goes with the next poll
        }
        Poll::Ready(Ok(written))
    }

    /// Drives for who writes: `true` when the direct connection is the place to write to, `None` when it is to be waited for.
    fn ready_to_write(&mut self, cx: &Context<'_>) -> io::Result<Option<bool>> {
        if !self.settled {
            self.wakers.writes(cx.waker());
            self.drive()?;
        }
        if self.halves.writes_direct() {
            // What moved is said before the first byte goes elsewhere: a peer that reads neither would wait for ever.
            return Ok((self.direct.is_some() && self.word.is_none()).then_some(true));
        }
        self.mute.take().map_or(Ok(Some(false)), Err)
    }

    fn poll_relay_flush(&mut self) -> Poll<io::Result<()>> {
        self.drive()?;
        let waker = Waker::from(Arc::clone(&self.wakers));
        let cx = &mut Context::from_waker(&waker);
        if self.word.is_some() || !self.is_flushed(cx) {
            return Poll::Pending;
        }
        Poll::Ready(self.mute.take().map_or(Ok(()), Err))
    }
}

/// The first bytes of these, at most so many.
fn gather(bufs: &[IoSlice<'_>], most: usize) -> Bytes {
    let all: usize = bufs.iter().map(|buf| buf.len()).sum();
    let mut piece = Vec::with_capacity(all.min(most));
    for buf in bufs {
        piece.extend_from_slice(&buf[..buf.len().min(most - piece.len())]);
    }
    piece.into()
}

impl AsyncRead for Way {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let way = self.get_mut();
        if !way.settled {
            way.wakers.reads(cx.waker());
            way.drive()?;
        }
        if !way.unread.is_empty() {
            let n = way.unread.len().min(buf.remaining());
            buf.put_slice(&way.unread[..n]);
            way.unread.advance(n);
            return Poll::Ready(Ok(()));
        }
        match (way.halves.source(), way.direct()) {
            (Source::Direct, Some(direct)) => direct.poll_read(cx, buf),
            (Source::End, _) => Poll::Ready(Ok(())),
            _ => Poll::Pending,
        }
    }
}

impl AsyncWrite for Way {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let way = self.get_mut();
        match (way.ready_to_write(cx)?, way.direct.as_mut()) {
            (Some(true), Some(direct)) => Pin::new(direct).poll_write(cx, buf),
            (Some(false), _) => way.poll_relay_write(&[IoSlice::new(buf)]),
            _ => Poll::Pending,
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let way = self.get_mut();
        match (way.ready_to_write(cx)?, way.direct.as_mut()) {
            (Some(true), Some(direct)) => Pin::new(direct).poll_write_vectored(cx, bufs),
            (Some(false), _) => way.poll_relay_write(bufs),
            _ => Poll::Pending,
        }
    }

    fn is_write_vectored(&self) -> bool {
        !self.settled || self.direct.as_ref().is_some_and(|direct| direct.is_write_vectored())
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let way = self.get_mut();
        match (way.ready_to_write(cx)?, way.direct.as_mut()) {
            (Some(true), Some(direct)) => Pin::new(direct).poll_flush(cx),
            (Some(false), _) => way.poll_relay_flush(),
            _ => Poll::Pending,
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let way = self.get_mut();
        let ready = way.ready_to_write(cx)?;
        if way.word.is_none() {
            way.word = way.halves.end();
        }
        match (ready, way.direct.as_mut()) {
            (Some(true), Some(direct)) => Pin::new(direct).poll_shutdown(cx),
            (Some(false), _) => way.poll_relay_flush(),
            _ => Poll::Pending,
        }
    }
}
