//! The rest of a body that is read as it comes: parts are taken from here without the post, and may be let go anywhere.
//!
//! A part is *unread* until its bytes are dropped: they lie in the sender's slot. Its sender stops at eight of them. So a
//! reader that wants to keep what it read copies it. In a strict domain they are a copy, and the sender is told how many
//! have been dropped: at the party's next turn, all of them in one word.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use nearpath_shm::envelope::TOTAL_UNKNOWN;
use nearpath_shm::{Knocker, Message, Payload};

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
    /// Messages of which nobody holds the bytes any more: what a strict sender goes by.
    let_go: AtomicU64,
    /// The sender has said all that it will, or nobody reads: it is told no more.
    over: AtomicBool,
    /// Where the party looks for what it has to tell: channel and call.
    report: OnceLock<(Arc<Left>, u32, u64)>,
}

/// A message of a body that came from a strict peer.
struct Held {
    payload: Payload,
    feed: Arc<Feed>,
}

/// What readers leave for the party, until it looks here.
#[derive(Debug)]
pub(super) struct Left {
    some: AtomicBool,
    news: Mutex<News>,
    own: Knocker,
}

/// What has become of bodies, by channel and call.
#[derive(Debug, Default)]
pub(super) struct News {
    /// Nobody reads them any more.
    pub(super) left: Vec<(u32, u64)>,
    /// So many messages of them have been let go of; for a strict sender.
    pub(super) let_go: Vec<(u32, u64, u64)>,
}

impl News {
    /// Words about one body come one after the other: the largest is enough.
    fn let_go(&mut self, channel: u32, call: u64, let_go: u64) {
        match self.let_go.last_mut().filter(|last| (last.0, last.1) == (channel, call)) {
            Some(last) => last.2 = last.2.max(let_go),
            None => self.let_go.push((channel, call, let_go)),
        }
    }
}

impl Rest {
    pub(super) fn new(feed: Arc<Feed>, left: Arc<Left>, channel: u32, call: u64) -> Self {
        let _ = feed.report.set((Arc::clone(&left), channel, call));
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
        self.feed.over.store(true, Ordering::Relaxed);
        let more = self.feed.lock().leave();
        if more {
            self.left.say(|news| news.left.push((self.channel, self.call)));
        }
    }
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        self.payload.as_ref()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.feed.dropped();
    }
}

impl Feed {
    pub(super) fn new(total: u64) -> Arc<Self> {
        let (let_go, over) = (AtomicU64::new(0), AtomicBool::new(false));
        Arc::new(Self { inflow: Mutex::default(), total, let_go, over, report: OnceLock::new() })
    }

    /// The bytes of a message that came from a strict peer: its sender hears when they are dropped.
    pub(super) fn hold(self: &Arc<Self>, message: Message) -> Bytes {
        Bytes::from_owner(Held { payload: Payload::new(message), feed: Arc::clone(self) })
    }

    /// One more message was let go of. May be called with the inflow locked.
    fn dropped(&self) {
        let let_go = self.let_go.fetch_add(1, Ordering::Relaxed) + 1;
        let Some((left, channel, call)) = self.report.get() else { return };
        if !self.over.load(Ordering::Relaxed) {
            left.say(|news| news.let_go(*channel, *call, let_go));
        }
    }

    pub(super) fn came(&self, part: Bytes, last: bool) {
        if last {
            self.over.store(true, Ordering::Relaxed);
        }
        let reader = self.lock().came(part, last);
        reader.into_iter().for_each(Waker::wake);
    }

    pub(super) fn broke(&self, why: CallError) {
        self.over.store(true, Ordering::Relaxed);
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
        Arc::new(Self { some: AtomicBool::new(false), news: Mutex::default(), own })
    }

    pub(super) fn any(&self) -> bool {
        self.some.load(Ordering::Acquire)
    }

    pub(super) fn take(&self) -> News {
        self.some.store(false, Ordering::Release);
        std::mem::take(&mut *self.lock())
    }

    fn say(&self, what: impl FnOnce(&mut News)) {
        what(&mut self.lock());
        self.some.store(true, Ordering::Release);
        self.ring();
    }

    fn lock(&self) -> MutexGuard<'_, News> {
        self.news.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the party itself, if it sleeps.
    fn ring(&self) {
        fence(Ordering::SeqCst);
        self.own.knock();
    }
}
