//! Bodies that are written in chunks.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;

use super::shared::SharedEndpoint;
use crate::endpoint::types::BodyUnwanted;

/// Writer of a body. Dropping it before [`BodyWriter::finish_body`] aborts the call or response.
#[derive(Debug)]
#[must_use = "a body that is not finished is broken off"]
pub struct BodyWriter {
    shared: Rc<SharedEndpoint>,
    channel: u32,
    call: u64,
    open: bool,
}

impl BodyWriter {
    pub(super) fn new(shared: &Rc<SharedEndpoint>, channel: u32, call: u64) -> Self {
        Self {
            shared: Rc::clone(shared),
            channel,
            call,
            open: true,
        }
    }

    /// Polls for room for the next chunk. Also wakes the task when no more is wanted.
    pub fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BodyUnwanted>> {
        self.shared
            .core
            .borrow_mut()
            .poll_writable(self.channel, self.call, cx)
    }

    /// Writes the next chunk. Requires that the writer is ready.
    pub fn push_chunk(&mut self, piece: Bytes) -> Result<(), BodyUnwanted> {
        let handed = self
            .shared
            .core
            .borrow_mut()
            .push_chunk(self.channel, self.call, piece);
        self.shared.wake_driver_if_due();
        handed
    }

    /// Waits until the writer is ready, then writes the chunk.
    pub async fn write_chunk(&mut self, piece: Bytes) -> Result<(), BodyUnwanted> {
        poll_fn(|cx| self.poll_ready(cx)).await?;
        self.push_chunk(piece)
    }

    /// Resolves when the caller gave up or is gone, for writers that are idle for long.
    pub async fn given_up(&self) {
        self.shared.given_up(self.channel, self.call).await;
    }

    /// Writes the last chunk. Requires that the writer is ready.
    pub fn finish_with(mut self, piece: Bytes) {
        self.open = false;
        self.shared
            .core
            .borrow_mut()
            .finish_with(self.channel, self.call, piece);
        self.shared.wake_driver_if_due();
    }

    /// Completes the body.
    pub fn finish_body(mut self) {
        self.open = false;
        self.shared
            .core
            .borrow_mut()
            .finish_body(self.channel, self.call);
        self.shared.wake_driver_if_due();
    }
}

impl Drop for BodyWriter {
    fn drop(&mut self) {
        if self.open {
            self.shared
                .core
                .borrow_mut()
                .abort_body(self.channel, self.call);
            self.shared.wake_driver_if_due();
        }
    }
}
