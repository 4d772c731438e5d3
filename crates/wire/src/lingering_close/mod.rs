//! Close of a connection in stages (RFC 9112 section 9.6), so that the peer can read the last
//! response.
//!
//! A close(2) with unread bytes sends a reset, and so do bytes that arrive after it (RFC 9293
//! section 3.6.1). A peer that still sends its request then fails before it reads the response. So
//! the server first ends its own direction, and drops what the peer sends until the peer closes or
//! [`LingerBudget`] is used up.

mod budget;
mod stream;
mod unread_input;

use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

pub use budget::{LINGER_READ_TIMEOUT, LINGER_TIMEOUT, LingerBudget, MAX_LINGER_BYTES};
pub use stream::LingeringStream;
pub use unread_input::{UnreadInput, WatchedBody};

/// Bytes that one read drops.
const READ_BYTES: usize = 16 * 1024;

/// A connection whose own direction has ended, until it may be closed.
#[derive(Debug)]
pub struct LingeringClose {
    budget: LingerBudget,
    timer: Pin<Box<Sleep>>,
}

impl LingeringClose {
    /// Begins now. Needs a tokio runtime with timers.
    pub fn begin() -> Self {
        let budget = LingerBudget::new(Instant::now().into_std());
        Self {
            budget,
            timer: Box::pin(sleep_until(budget.deadline().into())),
        }
    }

    /// Drops what the peer sends. Ready: the peer has closed, or the budget is used up.
    pub fn poll_closed<S: AsyncRead + Unpin>(
        &mut self,
        stream: &mut S,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        let mut dropped = [std::mem::MaybeUninit::uninit(); READ_BYTES];
        loop {
            let mut buf = ReadBuf::uninit(&mut dropped);
            match Pin::new(&mut *stream).poll_read(cx, &mut buf) {
                Poll::Pending => break,
                Poll::Ready(Ok(())) if !buf.filled().is_empty() => {
                    let now = Instant::now().into_std();
                    if !self.budget.note_read(buf.filled().len(), now) {
                        return Poll::Ready(());
                    }
                }
                Poll::Ready(_) => return Poll::Ready(()),
            }
        }
        let deadline = self.budget.deadline().into();
        if self.timer.deadline() != deadline {
            self.timer.as_mut().reset(deadline);
        }
        self.timer.as_mut().poll(cx)
    }
}
