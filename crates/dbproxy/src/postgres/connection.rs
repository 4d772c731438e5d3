//! A stream with what came from it and was not dealt with, and what goes into it and was not written.

use std::io;
use std::task::{Context, Poll};

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::frame::{MAX_WHOLE_BYTES, MessagePiece, PostgresFramer};
use crate::relay;

/// So much waits to be written at most, or nearly: then nothing more is read for it.
const MAX_BUFFERED_BYTES: usize = 64 << 10;
/// So much waits to be dealt with at most: a message that is read as a whole, and what came with its end.
const MAX_UNREAD_BYTES: usize = MAX_WHOLE_BYTES + MAX_BUFFERED_BYTES;

#[derive(Debug)]
pub(super) struct PostgresConnection<S> {
    pub(super) stream: S,
    pub(super) incoming: PostgresFramer,
    pub(super) outgoing: BytesMut,
}

impl<S: AsyncRead + AsyncWrite + Unpin> PostgresConnection<S> {
    pub(super) fn new(stream: S) -> Self {
        Self {
            stream,
            incoming: PostgresFramer::default(),
            outgoing: BytesMut::new(),
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.outgoing.len() >= MAX_BUFFERED_BYTES
    }

    /// Reads once, if there is room.
    pub(super) fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.incoming.buffer().len() >= MAX_UNREAD_BYTES {
            return Poll::Pending;
        }
        relay::poll_fill(&mut self.stream, cx, self.incoming.buffer())
    }

    /// Writes what there is, as far as it goes.
    pub(super) fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.outgoing.is_empty() {
            return Poll::Pending;
        }
        relay::poll_drain(&mut self.stream, cx, &mut self.outgoing)
    }

    /// Writes all.
    pub(super) async fn flush(&mut self) -> io::Result<()> {
        self.stream.write_all_buf(&mut self.outgoing).await?;
        self.stream.flush().await
    }

    /// The next message, whole: for the times when long ones are not sent.
    pub(super) async fn read_message(&mut self) -> io::Result<BytesMut> {
        loop {
            match self.incoming.next_piece().map_err(io::Error::other)? {
                Some(MessagePiece::Whole(message)) => return Ok(message),
                Some(_) => {
                    return Err(io::Error::other(
                        "a message longer than any that was expected",
                    ));
                }
                None => self.read_more().await?,
            }
        }
    }

    /// Exactly so many bytes, for what is no message.
    pub(super) async fn read_bytes(&mut self, count: usize) -> io::Result<BytesMut> {
        while self.incoming.buffer().len() < count {
            self.read_more().await?;
        }
        Ok(self.incoming.buffer().split_to(count))
    }

    async fn read_more(&mut self) -> io::Result<()> {
        let read = self.stream.read_buf(self.incoming.buffer()).await?;
        if read > 0 {
            Ok(())
        } else {
            Err(io::ErrorKind::UnexpectedEof.into())
        }
    }
}
