//! HTTP/1 heads that hyper cannot read are answered by hyper itself, with a status and nothing else. Here the platform's
//! own words take the place of that answer, so that its reader learns who refused and why.
//!
//! What tells hyper's answer from all others: it is written while no request is being answered.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use nearpath_wire::server::HttpLimits;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::conn_state::ConnState;
use crate::error_response;

/// A connection that speaks HTTP/1. See the module.
pub(super) struct Http1Stream<T> {
    io: T,
    state: Arc<ConnState>,
    limits: HttpLimits,
    /// What is left to write in the place of hyper's answer.
    replacement: Option<Bytes>,
}

impl<T> Http1Stream<T> {
    pub(super) fn new(io: T, state: Arc<ConnState>, limits: HttpLimits) -> Self {
        Self {
            io,
            state: state,
            limits,
            replacement: None,
        }
    }

    /// The words to write instead of `bytes`, if these are hyper's own.
    fn replacement_for(&mut self, bytes: &[u8]) -> Option<&mut Bytes> {
        if self.replacement.is_none() && !self.state.is_answering() {
            self.replacement = parse_status(bytes)
                .map(|status| error_response::render_unreadable(status, &self.limits));
        }
        self.replacement.as_mut()
    }
}

/// The status of an HTTP/1.1 answer.
fn parse_status(answer: &[u8]) -> Option<u16> {
    let digits = answer.strip_prefix(b"HTTP/1.1 ")?.get(..3)?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

impl<T: AsyncWrite + Unpin> Http1Stream<T> {
    /// Writes all words; then the `len` bytes that they stand for count as written. `NoConnection`: there are none to write.
    fn poll_replacement(
        &mut self,
        cx: &mut Context<'_>,
        first: &[u8],
        len: usize,
    ) -> Option<Poll<io::Result<usize>>> {
        self.replacement_for(first)?;
        Some(self.poll_write_replacement(cx).map_ok(|()| len))
    }

    fn poll_write_replacement(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(replacement) = self.replacement.as_mut().filter(|words| !words.is_empty()) {
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
