//! Bodies that go out bit by bit.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;

use super::shared::Shared;
use crate::post::words::NotWanted;

/// The rest of a body that was begun. Dropping it before [`Writer::finish`] breaks the call, or the answer, off.
#[derive(Debug)]
#[must_use = "a body that is not finished is broken off"]
pub struct Writer {
    shared: Rc<Shared>,
    channel: u32,
    call: u64,
    open: bool,
}

impl Writer {
    pub(super) fn new(shared: &Rc<Shared>, channel: u32, call: u64) -> Self {
        Self { shared: Rc::clone(shared), channel, call, open: true }
    }

    /// Whether the next piece can be handed over: the one before has been sent. The task is woken too when nobody wants more.
    pub fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), NotWanted>> {
        self.shared.core.borrow_mut().poll_room(self.channel, self.call, cx)
    }

    /// Hands the next piece over. Only when the writer is ready.
    pub fn hand(&mut self, piece: Bytes) -> Result<(), NotWanted> {
        let handed = self.shared.core.borrow_mut().hand(self.channel, self.call, piece);
        self.shared.rearm();
        handed
    }

    /// Waits until the writer is ready, then hands the piece over.
    pub async fn write(&mut self, piece: Bytes) -> Result<(), NotWanted> {
        poll_fn(|cx| self.poll_ready(cx)).await?;
        self.hand(piece)
    }

    /// Of an answer: resolves when nobody wants the rest of it. For a writer that has nothing to write for long.
    pub async fn given_up(&self) {
        self.shared.given_up(self.channel, self.call).await;
    }

    /// Hands the last piece over. Only when the writer is ready.
    pub fn end(mut self, piece: Bytes) {
        self.open = false;
        self.shared.core.borrow_mut().end(self.channel, self.call, piece);
        self.shared.rearm();
    }

    /// The body is complete.
    pub fn finish(mut self) {
        self.open = false;
        self.shared.core.borrow_mut().finish(self.channel, self.call);
        self.shared.rearm();
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if self.open {
            self.shared.core.borrow_mut().abort(self.channel, self.call);
            self.shared.rearm();
        }
    }
}
