//! HTTP/1 heads that hyper cannot read are answered by hyper itself, with a status and nothing else. Here the platform's
//! own words take the place of that answer, so that its reader learns who refused and why.
//!
//! What tells hyper's answer from all others: it is written while no request is being answered.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use nearpath_wire::server::Limits;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::conn_state::Life;
use crate::error_response;

/// A connection that speaks HTTP/1. See the module.
pub(super) struct Worded<T> {
    io: T,
    life: Arc<Life>,
    limits: Limits,
    /// What is left to write in the place of hyper's answer.
    words: Option<Bytes>,
}

impl<T> Worded<T> {
    pub(super) fn new(io: T, life: Arc<Life>, limits: Limits) -> Self {
        Self { io, life, limits, words: None }
    }

    /// The words to write instead of `bytes`, if these are hyper's own.
    fn words(&mut self, bytes: &[u8]) -> Option<&mut Bytes> {
        if self.words.is_none() && !self.life.is_answering() {
            self.words = status(bytes).map(|status| error_response::unread(status, &self.limits));
        }
        self.words.as_mut()
    }
}

/// The status of an HTTP/1.1 answer.
fn status(answer: &[u8]) -> Option<u16> {
    let digits = answer.strip_prefix(b"HTTP/1.1 ")?.get(..3)?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

impl<T: AsyncWrite + Unpin> Worded<T> {
    /// Writes all words; then the `len` bytes that they stand for count as written. `None`: there are none to write.
    fn poll_words(&mut self, cx: &mut Context<'_>, first: &[u8], len: usize) -> Option<Poll<io::Result<usize>>> {
        self.words(first)?;
        Some(self.poll_rest(cx).map_ok(|()| len))
    }

    fn poll_rest(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(words) = self.words.as_mut().filter(|words| !words.is_empty()) {
            match ready!(Pin::new(&mut self.io).poll_write(cx, words))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => words.advance(written),
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Worded<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Worded<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.poll_words(cx, buf, buf.len()) {
            Some(written) => written,
            None => Pin::new(&mut self.io).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let (first, len) = (bufs.first().map_or(&[][..], |buf| buf), bufs.iter().map(|buf| buf.len()).sum());
        match self.poll_words(cx, first, len) {
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
            self.life.flushed();
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
