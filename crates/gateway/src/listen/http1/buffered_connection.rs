//! A connection with what has been read of it and not been looked at.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};

use crate::fast_path::PlainRequest;
use crate::listen::conn_state::ConnState;
use crate::listen::tracked_stream::TrackedStream;

/// Room for one usual request.
const READ_RESERVE_BYTES: usize = 4096;
/// What a caller may send ahead while it waits for an answer.
const MAX_PIPELINED_BYTES: usize = 64 * 1024;

/// See the module.
pub(super) struct BufferedConnection<T> {
    pub(super) stream: TrackedStream<T>,
    buffer: BytesMut,
    pub(super) state: Arc<ConnState>,
}

impl<T: AsyncRead + AsyncWrite + Unpin> BufferedConnection<T> {
    pub(super) fn new(mut stream: TrackedStream<T>, state: Arc<ConnState>) -> Self {
        let unread = stream.take_unread();
        let buffer = unread
            .try_into_mut()
            .unwrap_or_else(|shared| BytesMut::from(&shared[..]));
        Self {
            stream: stream,
            buffer,
            state: state,
        }
    }

    /// What has come and not been taken.
    pub(super) fn buffer(&mut self) -> &mut BytesMut {
        &mut self.buffer
    }

    /// Reads once. False: nothing more comes, or the thread drains and nothing has begun.
    pub(super) async fn read_more(&mut self) -> io::Result<bool> {
        self.buffer.reserve(READ_RESERVE_BYTES);
        let (state, is_idle) = (&self.state, self.buffer.is_empty());
        let mut read = pin!(self.stream.read_buf(&mut self.buffer));
        let has_ended = |state: &ConnState| is_idle && state.is_draining();
        poll_fn(|cx| {
            if has_ended(state) {
                Poll::Ready(Ok(0))
            } else {
                read.as_mut().poll(cx)
            }
        })
        .await
        .map(|n| n > 0)
    }

    /// Awaits `answer` for as long as the caller is there; `NoConnection`: it has gone.
    pub(super) async fn await_unless_gone<F: Future>(&mut self, answer: F) -> Option<F::Output> {
        let mut answer = pin!(answer);
        poll_fn(|cx| match answer.as_mut().poll(cx) {
            Poll::Ready(answer) => Poll::Ready(Some(answer)),
            Poll::Pending => self.poll_gone(cx).map(|()| None),
        })
        .await
    }

    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
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

    /// The connection as it was before anything was read that has not been answered.
    pub(super) fn into_stream(mut self, unanswered: Option<PlainRequest>) -> TrackedStream<T> {
        let unread = match unanswered {
            None => self.buffer.freeze(),
            Some(plain) => [&plain.bytes[..], &self.buffer].concat().into(),
        };
        self.stream.put_back(unread);
        self.stream
    }
}
