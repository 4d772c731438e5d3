//! An HTTP/1.1 connection with its unparsed bytes.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::fast_path::PlainRequest;
use crate::listen::conn_state::ConnState;
use crate::listen::tracked_stream::TrackedStream;

/// Read buffer for one usual request.
const READ_RESERVE_BYTES: usize = 4096;
/// Maximum bytes that a caller may pipeline while it waits for a response.
const MAX_PIPELINED_BYTES: usize = 64 * 1024;

/// HTTP/1.1 connection with a read buffer.
pub(super) struct BufferedConnection<T> {
    pub(super) stream: TrackedStream<T>,
    buffer: BytesMut,
    pub(super) state: Arc<ConnState>,
}

impl<T: AsyncRead + AsyncWrite + Unpin> BufferedConnection<T> {
    pub(super) fn new(mut stream: TrackedStream<T>, state: Arc<ConnState>) -> Self {
        let unread = stream.take_unread();
        // Usually the only reference to these bytes, which are then taken without a copy.
        let buffer = unread
            .try_into_mut()
            .unwrap_or_else(|shared| BytesMut::from(&shared[..]));
        Self {
            stream,
            buffer,
            state,
        }
    }

    /// Returns the unparsed bytes.
    pub(super) fn buffer(&mut self) -> &mut BytesMut {
        &mut self.buffer
    }

    /// Reads once. False: the caller has closed, or the thread drains and no request has begun.
    pub(super) async fn read_more(&mut self) -> io::Result<bool> {
        self.buffer.reserve(READ_RESERVE_BYTES);
        let (state, is_idle) = (&self.state, self.buffer.is_empty());
        let mut read = pin!(self.stream.read_buf(&mut self.buffer));
        // A head that has begun is waited for even in the drain: its caller expects a response.
        let has_ended = |state: &ConnState| is_idle && state.is_draining();
        // Read first: a request that has arrived is answered.
        poll_fn(|cx| match read.as_mut().poll(cx) {
            Poll::Pending if has_ended(state) => Poll::Ready(Ok(0)),
            polled => polled,
        })
        .await
        .map(|n| n > 0)
    }

    /// Awaits `answer` while the caller is connected; `None`: it has closed. Pinned by the caller, as in
    /// [`ConnState::run_until_cut`].
    pub(super) async fn await_unless_gone<F: Future>(
        &mut self,
        mut answer: Pin<&mut F>,
    ) -> Option<F::Output> {
        poll_fn(|cx| match answer.as_mut().poll(cx) {
            Poll::Ready(answer) => Poll::Ready(Some(answer)),
            Poll::Pending => self.poll_gone(cx).map(|()| None),
        })
        .await
    }

    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // Reading is the only way to learn of a close. Beyond the limit, TCP's window stops the
        // caller.
        while self.buffer.len() < MAX_PIPELINED_BYTES {
            self.buffer.reserve(READ_RESERVE_BYTES);
            let read = pin!(self.stream.read_buf(&mut self.buffer)).poll(cx);
            match read {
                Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(()),
                Poll::Ready(Ok(_)) => {}
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Pending
    }

    /// Writes bytes, and those before them that TLS has encrypted.
    pub(super) async fn write_all(&mut self, bytes: &mut impl Buf) -> io::Result<()> {
        self.stream.write_all_buf(bytes).await?;
        self.stream.flush().await
    }

    /// Writes the rest of a response.
    pub(super) async fn write_rest(&mut self, rest: &mut impl Buf) -> io::Result<()> {
        self.write_all(rest).await?;
        self.state.note_flushed();
        Ok(())
    }

    /// Closes after the last response. The client may have sent further requests by then.
    pub(super) async fn close(mut self) {
        if !self.buffer.is_empty() {
            self.state.unread_input.mark_unread();
        }
        let _ = self.stream.shutdown().await; // fails only if the connection is gone
    }

    /// Returns the stream with all bytes that were not answered.
    pub(super) fn into_stream(mut self, unanswered: Option<PlainRequest>) -> TrackedStream<T> {
        let unread = match unanswered {
            None => self.buffer.freeze(),
            Some(plain) => [&plain.bytes[..], &self.buffer].concat().into(),
        };
        self.stream.put_back(unread);
        self.stream
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use nearpath_testkit::within;
    use tokio::io::{DuplexStream, duplex};

    use super::*;

    /// Returns a connection whose client has sent these bytes when the drain begins.
    async fn draining_after(bytes: &[u8]) -> (BufferedConnection<DuplexStream>, DuplexStream) {
        let (mut client, io) = duplex(1024);
        client.write_all(bytes).await.unwrap();
        let state = ConnState::new(&Arc::default());
        let stream = TrackedStream::new(io, Bytes::new(), state.clone());
        state.drain_connection();
        (BufferedConnection::new(stream, state), client)
    }

    #[tokio::test]
    async fn a_drain_reads_the_request_that_has_arrived() {
        let request = b"GET /function/a HTTP/1.1\r\nhost: a\r\n\r\n";
        let (mut connection, _client) = draining_after(request).await;
        assert!(within(connection.read_more()).await.unwrap());
        assert_eq!(&connection.buffer()[..], request);
    }

    #[tokio::test]
    async fn a_drain_awaits_no_request() {
        let (mut connection, _client) = draining_after(b"").await;
        assert!(!within(connection.read_more()).await.unwrap());
    }
}
