//! A stream with its unprocessed input and its unwritten output.

use std::io;
use std::task::{Context, Poll};

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::frame::{MAX_WHOLE_BYTES, MessagePiece, PostgresFramer};
use crate::relay;

/// Output limit in bytes. Beyond it no more is read for this stream: backpressure.
const MAX_BUFFERED_BYTES: usize = 64 << 10;
/// Input limit in bytes: one message that is read as a whole, and what arrived with its end.
const MAX_UNREAD_BYTES: usize = MAX_WHOLE_BYTES + MAX_BUFFERED_BYTES;

/// Bytes of a foreign answer that an error repeats.
const MAX_ANSWER_BYTES: usize = 32;

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

    /// Reads once, if the input buffer has space.
    pub(super) fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        // `Pending` without a waker is fine: the caller is woken by the progress that empties the
        // buffer.
        if self.incoming.buffer().len() >= MAX_UNREAD_BYTES {
            return Poll::Pending;
        }
        relay::poll_fill(&mut self.stream, cx, self.incoming.buffer())
    }

    /// Writes as much output as the socket takes.
    pub(super) fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        relay::poll_drain(&mut self.stream, cx, &mut self.outgoing)
    }

    /// Writes all output.
    pub(super) async fn flush(&mut self) -> io::Result<()> {
        self.stream.write_all_buf(&mut self.outgoing).await?;
        self.stream.flush().await
    }

    /// Waits for a server's first bytes, and checks that they can begin an answer to a startup
    /// message.
    ///
    /// # Errors
    /// Fails when the server does not speak PostgreSQL, or when the connection breaks.
    pub(super) async fn check_first_answer(&mut self) -> io::Result<()> {
        if self.incoming.buffer().is_empty() {
            self.read_more().await?;
        }
        let first = &self.incoming.buffer()[..];
        // The manual, "Start-up": an authentication request, an error, a notice or the version.
        if matches!(first, [b'R' | b'E' | b'N' | b'v', ..]) {
            return Ok(());
        }
        let shown = &first[..first.len().min(MAX_ANSWER_BYTES)];
        Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!(
                "the server does not speak PostgreSQL, it answered \"{}\"; check the port, or use `protocol=tcp`",
                shown.escape_ascii()
            ),
        ))
    }

    /// Reads the next message as a whole, for the phases that have no long messages.
    pub(super) async fn read_message(&mut self) -> io::Result<BytesMut> {
        loop {
            match self.incoming.next_piece().map_err(io::Error::other)? {
                Some(MessagePiece::Whole(message)) => return Ok(message),
                Some(_) => {
                    return Err(io::Error::other("unexpected long message"));
                }
                None => self.read_more().await?,
            }
        }
    }

    /// Reads exactly so many bytes, for input that is not a message.
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
