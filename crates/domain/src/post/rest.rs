//! The rest of a body that is read as it comes: parts are taken from here without the post, and may be let go anywhere.
//!
//! A part is *unread* until its bytes are dropped: they lie in the sender's slot. Its sender stops at eight of them. So a
//! reader that wants to keep what it read copies it.

use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use nearpath_shm::Knocker;
use nearpath_shm::envelope::TOTAL_UNKNOWN;

use super::words::CallError;
use crate::inflow::{Inflow, Next};
use crate::outflow::WINDOW;

/// A sender that knows no window (it goes by the ring's room alone) is stopped here, by leaving its ring unread.
const CLOGGED: usize = 4 * WINDOW;

/// What follows the first part of a body. Dropping it says that nobody wants more: of an answer, its sender is told.
#[derive(Debug)]
pub struct Rest {
    feed: Arc<Feed>,
    left: Arc<Left>,
    channel: u32,
    call: u64,
}

/// Where the parts come in.
#[derive(Debug)]
pub(super) struct Feed {
    inflow: Mutex<Inflow<CallError>>,
    total: u64,
}

/// The bodies that nobody reads any more, until the party looks here.
#[derive(Debug)]
pub(super) struct Left {
    some: AtomicBool,
    bodies: Mutex<Vec<(u32, u64)>>,
    own: Knocker,
}

impl Rest {
    pub(super) fn new(feed: Arc<Feed>, left: Arc<Left>, channel: u32, call: u64) -> Self {
        Self { feed, left, channel, call }
    }

    /// The next part; nothing at the end. Otherwise the body was broken off: what came is not all of it.
    pub fn poll(&self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, CallError>>> {
        self.next_for(Some(cx.waker()))
    }

    /// [`Rest::poll`] as a future.
    pub async fn next(&self) -> Option<Result<Bytes, CallError>> {
        std::future::poll_fn(|cx| self.poll(cx)).await
    }

    pub(super) fn next_for(&self, waker: Option<&Waker>) -> Poll<Option<Result<Bytes, CallError>>> {
        let mut inflow = self.feed.lock();
        let was = inflow.unread();
        let next = inflow.next(waker);
        drop(inflow);
        if was == CLOGGED {
            self.left.ring();
        }
        match next {
            Next::Part(part) => Poll::Ready(Some(Ok(part))),
            Next::End => Poll::Ready(None),
            Next::Broken(why) => Poll::Ready(Some(Err(why))),
            Next::Nothing => Poll::Pending,
        }
    }

    /// Bytes of the whole body, its first part included, if the sender said. Nobody has checked it.
    pub fn total(&self) -> Option<u64> {
        Some(self.feed.total).filter(|total| *total != TOTAL_UNKNOWN)
    }

    /// Whether all has come and was read.
    pub fn is_over(&self) -> bool {
        self.feed.lock().is_over()
    }
}

impl Drop for Rest {
    fn drop(&mut self) {
        let more = self.feed.lock().leave();
        if more {
            self.left.bodies.lock().unwrap_or_else(PoisonError::into_inner).push((self.channel, self.call));
            self.left.some.store(true, Ordering::Release);
            self.left.ring();
        }
    }
}

impl Feed {
    pub(super) fn new(total: u64) -> Arc<Self> {
        Arc::new(Self { inflow: Mutex::default(), total })
    }

    pub(super) fn came(&self, part: Bytes, last: bool) {
        let reader = self.lock().came(part, last);
        reader.into_iter().for_each(Waker::wake);
    }

    pub(super) fn broke(&self, why: CallError) {
        let reader = self.lock().broke(why);
        reader.into_iter().for_each(Waker::wake);
    }

    /// Nobody reads it.
    pub(super) fn leave(&self) {
        self.lock().leave();
    }

    /// Whether its reader has to take something before more can come.
    pub(super) fn is_clogged(&self) -> bool {
        self.lock().unread() >= CLOGGED
    }

    fn lock(&self) -> MutexGuard<'_, Inflow<CallError>> {
        self.inflow.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Left {
    pub(super) fn new(own: Knocker) -> Arc<Self> {
        Arc::new(Self { some: AtomicBool::new(false), bodies: Mutex::default(), own })
    }

    pub(super) fn any(&self) -> bool {
        self.some.load(Ordering::Acquire)
    }

    pub(super) fn take(&self) -> Vec<(u32, u64)> {
        self.some.store(false, Ordering::Release);
        std::mem::take(&mut *self.bodies.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Wakes the party itself, if it sleeps.
    fn ring(&self) {
        fence(Ordering::SeqCst);
        self.own.knock();
    }
}
