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

use crate::caller_socket::Socket;

/// What an HTTP/2 connection begins with.
const HTTP2_PREFACE_START: &[u8] = b"PRI ";

/// Counts the requests of one connection that are being answered.
#[derive(Debug, Clone, Default)]
pub(crate) struct BusyCount(Arc<AtomicUsize>);

/// One request being answered, until dropped.
#[derive(Debug)]
pub(crate) struct BusyGuard(BusyCount);

impl BusyCount {
    /// One more.
    pub(crate) fn begin_request(&self) -> BusyGuard {
        self.0.fetch_add(1, Ordering::Relaxed);
        BusyGuard(self.clone())
    }

    fn is_idle(&self) -> bool {
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
pub(crate) struct TimeoutStream {
    io: Socket,
    busy: BusyCount,
    /// HTTP/2 has heads, pings and data at any time; hyper's keep-alive looks after such connections.
    is_http2: Option<bool>,
    read_limit: Option<Duration>,
    write_limit: Option<Duration>,
    head_timer: Option<Pin<Box<Sleep>>>,
    write_timer: Option<Pin<Box<Sleep>>>,
}

impl TimeoutStream {
    pub(crate) fn new(
        io: Socket,
        busy: BusyCount,
        read_limit: Option<Duration>,
        write_limit: Option<Duration>,
    ) -> Self {
        Self {
            io,
            busy,
            is_http2: None,
            read_limit,
            write_limit,
            head_timer: None,
            write_timer: None,
        }
    }

    /// Bytes have come: a head has begun, unless a request is being answered.
    fn note_received(&mut self, bytes: &[u8]) {
        let is_http2 = *self
            .is_http2
            .get_or_insert_with(|| bytes.starts_with(HTTP2_PREFACE_START));
        match self.read_limit {
            Some(limit) if !is_http2 && self.busy.is_idle() => {
                self.head_timer
                    .get_or_insert_with(|| Box::pin(sleep(limit)));
            }
            _ => self.head_timer = None,
        }
    }

    fn is_head_too_slow(&mut self, cx: &mut Context<'_>) -> bool {
        if !self.busy.is_idle() {
            self.head_timer = None;
        }
        self.head_timer
            .as_mut()
            .is_some_and(|head| head.as_mut().poll(cx).is_ready())
    }

    fn check_write<T>(
        &mut self,
        cx: &mut Context<'_>,
        polled: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        let Some(limit) = self.write_limit.filter(|_| polled.is_pending()) else {
            self.write_timer = None;
            return polled;
        };
        match self
            .write_timer
            .get_or_insert_with(|| Box::pin(sleep(limit)))
            .as_mut()
            .poll(cx)
        {
            Poll::Ready(()) => Poll::Ready(Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the caller takes no bytes",
            ))),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for TimeoutStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buf.filled().len();
        let polled = Pin::new(&mut this.io).poll_read(cx, buf);
        if buf.filled().len() > before {
            this.note_received(&buf.filled()[before..]);
        }
        if polled.is_pending() && this.is_head_too_slow(cx) {
            return Poll::Ready(Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the request's head stopped arriving",
            )));
        }
        polled
    }
}

impl AsyncWrite for TimeoutStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.io).poll_write(cx, buf);
        self.check_write(cx, polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.io).poll_write_vectored(cx, bufs);
        self.check_write(cx, polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.io).poll_flush(cx); // TLS has bytes of its own that the caller must take
        self.check_write(cx, polled)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
