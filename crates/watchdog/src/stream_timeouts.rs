//! Timeouts of a caller's connection: inside a request's head, and for a response that is not
//! taken.
//!
//! hyper's own timeout for heads also closes idle connections. A request that the gateway sends at
//! that moment would be lost without proof. So idle connections stay open, and time runs only from
//! the first byte of a head.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use crate::caller_socket::CallerSocket;

/// Beginning of the HTTP/2 connection preface (RFC 9113 section 3.4).
const HTTP2_PREFACE_START: &[u8] = b"PRI ";

/// Number of requests of one connection that are being handled.
#[derive(Debug, Clone, Default)]
pub(crate) struct BusyCount(Arc<AtomicUsize>);

/// Request being handled, until dropped.
#[derive(Debug)]
pub(crate) struct BusyGuard(BusyCount);

impl BusyCount {
    /// Counts a request that begins.
    pub(crate) fn begin_request(&self) -> BusyGuard {
        // Relaxed, as all accesses here: the count guards no other data.
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

/// Connection with timeouts for stalled callers.
#[derive(Debug)]
pub(crate) struct TimeoutStream {
    io: CallerSocket,
    busy: BusyCount,
    /// Known from the first bytes. HTTP/2 has frames at any time; hyper's keep-alive watches such
    /// connections.
    is_http2: Option<bool>,
    read_limit: Option<Duration>,
    write_limit: Option<Duration>,
    head_timer: Option<Pin<Box<Sleep>>>,
    write_timer: Option<Pin<Box<Sleep>>>,
}

impl TimeoutStream {
    pub(crate) fn new(
        io: CallerSocket,
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

    /// Handles received bytes: a head has begun, unless a request is being handled.
    fn note_received(&mut self, bytes: &[u8]) {
        let is_http2 = *self
            .is_http2
            .get_or_insert_with(|| bytes.starts_with(HTTP2_PREFACE_START));
        match self.read_limit {
            Some(limit) if !is_http2 && self.busy.is_idle() => {
                // A running timer stays: single bytes must not extend it.
                self.head_timer
                    .get_or_insert_with(|| Box::pin(sleep(limit)));
            }
            _ => self.head_timer = None,
        }
    }

    fn is_head_too_slow(&mut self, cx: &mut Context<'_>) -> bool {
        // hyper has called the service, so the head is complete.
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
        // Armed by the first write that must wait, cleared by the next that succeeds.
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
        // Only without new bytes: those at hand are read first.
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
