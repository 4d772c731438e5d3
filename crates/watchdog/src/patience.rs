//! A connection to a caller that gives up on one that stalls: inside a request's head, or by not taking the answer.
//!
//! hyper's own limit on heads also closes idle connections, and a request that the gateway sends in that moment would be
//! lost without proof that it was. So idle connections stay open, and time only runs from a head's first byte.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use crate::socket::Socket;

/// What an HTTP/2 connection begins with.
const HTTP2: &[u8] = b"PRI ";

/// Counts the requests of one connection that are being answered.
#[derive(Debug, Clone, Default)]
pub(crate) struct Busy(Arc<AtomicUsize>);

/// One request being answered, until dropped.
#[derive(Debug)]
pub(crate) struct BusyGuard(Busy);

impl Busy {
    /// One more.
    pub(crate) fn enter(&self) -> BusyGuard {
        self.0.fetch_add(1, Ordering::Relaxed);
        BusyGuard(self.clone())
    }

    fn idle(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }
}

impl Drop for BusyGuard {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Patient {
    io: Socket,
    busy: Busy,
    /// HTTP/2 has heads, pings and data at any time; hyper's keep-alive looks after such connections.
    http2: Option<bool>,
    read_limit: Option<Duration>,
    write_limit: Option<Duration>,
    head: Option<Pin<Box<Sleep>>>,
    stall: Option<Pin<Box<Sleep>>>,
}

impl Patient {
    pub(crate) fn new(io: Socket, busy: Busy, read_limit: Option<Duration>, write_limit: Option<Duration>) -> Self {
        Self { io, busy, http2: None, read_limit, write_limit, head: None, stall: None }
    }

    /// Bytes have come: a head has begun, unless a request is being answered.
    fn arrived(&mut self, bytes: &[u8]) {
        let http2 = *self.http2.get_or_insert_with(|| bytes.starts_with(HTTP2));
        match self.read_limit {
            Some(limit) if !http2 && self.busy.idle() => {
                self.head.get_or_insert_with(|| Box::pin(sleep(limit)));
            }
            _ => self.head = None,
        }
    }

    fn head_too_slow(&mut self, cx: &mut Context<'_>) -> bool {
        if !self.busy.idle() {
            self.head = None;
        }
        self.head.as_mut().is_some_and(|head| head.as_mut().poll(cx).is_ready())
    }

    fn wrote<T>(&mut self, cx: &mut Context<'_>, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        let Some(limit) = self.write_limit.filter(|_| polled.is_pending()) else {
            self.stall = None;
            return polled;
        };
        match self.stall.get_or_insert_with(|| Box::pin(sleep(limit))).as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the caller takes no bytes"))),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for Patient {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buf.filled().len();
        let polled = Pin::new(&mut this.io).poll_read(cx, buf);
        if buf.filled().len() > before {
            this.arrived(&buf.filled()[before..]);
        }
        if polled.is_pending() && this.head_too_slow(cx) {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the request's head stopped arriving")));
        }
        polled
    }
}

impl AsyncWrite for Patient {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.io).poll_write(cx, buf);
        self.wrote(cx, polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.io).poll_write_vectored(cx, bufs);
        self.wrote(cx, polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.io).poll_flush(cx); // TLS has bytes of its own that the caller must take
        self.wrote(cx, polled)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
