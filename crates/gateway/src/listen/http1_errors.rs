//! Replaces hyper's responses to HTTP/1 heads that it cannot parse.
//!
//! hyper sends only a status. Callers also learn here which component refused the request and why.
//! A response is hyper's own if it is written while no request is being answered.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use nearpath_wire::server::HttpLimits;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::conn_state::ConnState;
use crate::error_response;

/// HTTP/1 connection whose parse errors are replaced by platform errors.
pub(super) struct Http1Stream<T> {
    io: T,
    state: Arc<ConnState>,
    limits: HttpLimits,
    /// Bytes left to write in place of hyper's response.
    replacement: Option<Bytes>,
}

impl<T> Http1Stream<T> {
    pub(super) fn new(io: T, state: Arc<ConnState>, limits: HttpLimits) -> Self {
        Self {
            io,
            state,
            limits,
            replacement: None,
        }
    }

    /// Returns the bytes to write instead of `bytes`, if these are hyper's own response.
    fn replacement_for(&mut self, bytes: &[u8]) -> Option<&mut Bytes> {
        if self.state.has_http_ended() {
            return None; // these bytes belong to the protocol after an upgrade, and may be HTTP
        }
        if self.replacement.is_none() && !self.state.is_answering() {
            self.replacement = parse_status(bytes)
                .map(|status| error_response::render_unreadable(status, &self.limits));
            if self.replacement.is_some() {
                self.state.unread_input.mark_unread(); // hyper reads nothing after such a head
            }
        }
        self.replacement.as_mut()
    }
}

/// Parses the status of an HTTP/1.1 response.
fn parse_status(answer: &[u8]) -> Option<u16> {
    let digits = answer.strip_prefix(b"HTTP/1.1 ")?.get(..3)?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

impl<T: AsyncWrite + Unpin> Http1Stream<T> {
    /// Writes the replacement; then the `len` replaced bytes count as written. `None`: there is
    /// no replacement.
    fn poll_replacement(
        &mut self,
        cx: &mut Context<'_>,
        first: &[u8],
        len: usize,
    ) -> Option<Poll<io::Result<usize>>> {
        // hyper writes its error response with a single call, so the first buffer holds the
        // status line.
        self.replacement_for(first)?;
        Some(self.poll_write_replacement(cx).map_ok(|()| len))
    }

    fn poll_write_replacement(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(replacement) = self.replacement.as_mut().filter(|left| !left.is_empty()) {
            match ready!(Pin::new(&mut self.io).poll_write(cx, replacement))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => replacement.advance(written),
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Http1Stream<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Http1Stream<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.poll_replacement(cx, buf, buf.len()) {
            Some(written) => written,
            None => Pin::new(&mut self.io).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let (first, len) = (
            bufs.first().map_or(&[][..], |buf| buf),
            bufs.iter().map(|buf| buf.len()).sum(),
        );
        match self.poll_replacement(cx, first, len) {
            Some(written) => written,
            None => Pin::new(&mut self.io).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.io).poll_flush(cx);
        if flushed.is_ready() {
            self.state.note_flushed();
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
