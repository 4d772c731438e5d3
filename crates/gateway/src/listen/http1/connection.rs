//! A connection with what has been read of it and not been looked at.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};

use crate::fast_path::Whole;
use crate::listen::conn_state::Life;
use crate::listen::tracked_stream::Watched;

/// Room for one usual request.
const READ: usize = 4096;
/// What a caller may send ahead while it waits for an answer.
const AHEAD: usize = 64 * 1024;

/// See the module.
pub(super) struct Line<T> {
    pub(super) io: Watched<T>,
    buffer: BytesMut,
    pub(super) life: Arc<Life>,
}

impl<T: AsyncRead + AsyncWrite + Unpin> Line<T> {
    pub(super) fn new(mut io: Watched<T>, life: Arc<Life>) -> Self {
        let seen = io.take_replay();
        let buffer = seen.try_into_mut().unwrap_or_else(|shared| BytesMut::from(&shared[..]));
        Self { io, buffer, life }
    }

    /// What has come and not been taken.
    pub(super) fn buffer(&mut self) -> &mut BytesMut {
        &mut self.buffer
    }

    /// Reads once. False: nothing more comes, or the thread drains and nothing has begun.
    pub(super) async fn fill(&mut self) -> io::Result<bool> {
        self.buffer.reserve(READ);
        let (life, idle) = (&self.life, self.buffer.is_empty());
        let mut read = pin!(self.io.read_buf(&mut self.buffer));
        let ends = |life: &Life| idle && life.is_draining();
        poll_fn(|cx| if ends(life) { Poll::Ready(Ok(0)) } else { read.as_mut().poll(cx) }).await.map(|n| n > 0)
    }

    /// Awaits `answer` for as long as the caller is there; `None`: it has gone.
    pub(super) async fn unless_gone<F: Future>(&mut self, answer: F) -> Option<F::Output> {
        let mut answer = pin!(answer);
        poll_fn(|cx| match answer.as_mut().poll(cx) {
            Poll::Ready(answer) => Poll::Ready(Some(answer)),
            Poll::Pending => self.poll_gone(cx).map(|()| None),
        })
        .await
    }

    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.buffer.len() < AHEAD {
            self.buffer.reserve(READ);
            let read = pin!(self.io.read_buf(&mut self.buffer)).poll(cx);
            match read {
                Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(()),
                Poll::Ready(Ok(_)) => {}
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Pending
    }

    /// The connection as it was before anything was read that has not been answered.
    pub(super) fn hand_over(mut self, unanswered: Option<Whole>) -> Watched<T> {
        let seen = match unanswered {
            None => self.buffer.freeze(),
            Some(whole) => [&whole.bytes[..], &self.buffer].concat().into(),
        };
        self.io.replay(seen);
        self.io
    }
}
