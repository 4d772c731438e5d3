//! A stream with what came from it and was not dealt with, and what goes into it and was not written.

use std::io;
use std::task::{Context, Poll};

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::frame::{Inbox, LONGEST_READ, Piece};
use crate::relay;

/// So much waits to be written at most, or nearly: then nothing more is read for it.
const FULL: usize = 64 << 10;
/// So much waits to be dealt with at most: a message that is read as a whole, and what came with its end.
const MOST_UNREAD: usize = LONGEST_READ + FULL;

#[derive(Debug)]
pub(super) struct Line<S> {
    pub(super) stream: S,
    pub(super) inbox: Inbox,
    pub(super) out: BytesMut,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Line<S> {
    pub(super) fn new(stream: S) -> Self {
        Self { stream, inbox: Inbox::default(), out: BytesMut::new() }
    }

    pub(super) fn is_full(&self) -> bool {
        self.out.len() >= FULL
    }

    /// Reads once, if there is room.
    pub(super) fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.inbox.room().len() >= MOST_UNREAD {
            return Poll::Pending;
        }
        relay::poll_fill(&mut self.stream, cx, self.inbox.room())
    }

    /// Writes what there is, as far as it goes.
    pub(super) fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.out.is_empty() {
            return Poll::Pending;
        }
        relay::poll_drain(&mut self.stream, cx, &mut self.out)
    }

    /// Writes all.
    pub(super) async fn flush(&mut self) -> io::Result<()> {
        self.stream.write_all_buf(&mut self.out).await?;
        self.stream.flush().await
    }

    /// The next message, whole: for the times when long ones are not sent.
    pub(super) async fn message(&mut self) -> io::Result<BytesMut> {
        loop {
            match self.inbox.next().map_err(io::Error::other)? {
                Some(Piece::Whole(message)) => return Ok(message),
                Some(_) => return Err(io::Error::other("a message longer than any that was expected")),
                None => self.fill().await?,
            }
        }
    }

    /// Exactly so many bytes, for what is no message.
    pub(super) async fn bytes(&mut self, count: usize) -> io::Result<BytesMut> {
        while self.inbox.room().len() < count {
            self.fill().await?;
        }
        Ok(self.inbox.room().split_to(count))
    }

    async fn fill(&mut self) -> io::Result<()> {
        let read = self.stream.read_buf(self.inbox.room()).await?;
        if read > 0 { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }
}
