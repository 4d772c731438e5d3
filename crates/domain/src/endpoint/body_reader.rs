//! Reader of a body that arrives in parts. It works without the endpoint, and parts may be dropped
//! on any thread.
//!
//! A part is *unread* until its bytes are dropped: they lie in the sender's slot, and the sender
//! stops at eight. So a reader copies what it keeps. In a strict domain parts are copies; the
//! endpoint reports dropped ones to the sender, all in one message.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use nearpath_shm::envelope::TOTAL_UNKNOWN;
use nearpath_shm::{MessagePayload, ReceivedMessage, WakeupSignal};

use super::types::CallError;
use crate::inbound_body::{InboundBody, NextPart};
use crate::outbound_body::MAX_PARTS_IN_FLIGHT;

/// Unread parts at which the endpoint stops receiving: a bound for senders that respect only the
/// ring's room.
const MAX_UNREAD_PARTS: usize = 4 * MAX_PARTS_IN_FLIGHT;

/// Rest of a body after its first part. Dropping it ends reading; the sender of a response is told.
#[derive(Debug)]
pub struct BodyReader {
    queue: Arc<PartQueue>,
    reports: Arc<ReaderReports>,
    channel: u32,
    call: u64,
}

/// Receiving queue of one body.
#[derive(Debug)]
pub(super) struct PartQueue {
    inbound: Mutex<InboundBody<CallError>>,
    total: u64,
    /// Messages whose bytes were all dropped, as reported to a strict sender.
    released: AtomicU64,
    /// True when the sender is done or the reader gone: nothing more is reported.
    ended: AtomicBool,
    /// Destination of reports, with channel and call.
    report: OnceLock<(Arc<ReaderReports>, u32, u64)>,
}

/// A message of a body from a strict peer.
struct HeldPart {
    payload: MessagePayload,
    queue: Arc<PartQueue>,
}

/// Reports of readers, until the endpoint processes them.
#[derive(Debug)]
pub(super) struct ReaderReports {
    has_pending: AtomicBool,
    pending: Mutex<ReaderReport>,
    own_signal: WakeupSignal,
}

/// Changes of bodies, by channel and call.
#[derive(Debug, Default)]
pub(super) struct ReaderReport {
    /// Bodies without a reader.
    pub(super) abandoned: Vec<(u32, u64)>,
    /// Number of released messages per body, for strict senders.
    pub(super) releases: Vec<(u32, u64, u64)>,
}

impl ReaderReport {
    /// Consecutive reports about one body are merged: the highest suffices.
    fn add_release(&mut self, channel: u32, call: u64, let_go: u64) {
        match self
            .releases
            .last_mut()
            .filter(|last| (last.0, last.1) == (channel, call))
        {
            Some(last) => last.2 = last.2.max(let_go),
            None => self.releases.push((channel, call, let_go)),
        }
    }
}

impl BodyReader {
    pub(super) fn new(
        feed: Arc<PartQueue>,
        left: Arc<ReaderReports>,
        channel: u32,
        call: u64,
    ) -> Self {
        // Set once per body: a second reader of the same queue does not exist.
        let _ = feed.report.set((Arc::clone(&left), channel, call));
        Self {
            queue: feed,
            reports: left,
            channel,
            call,
        }
    }

    /// Polls for the next part; none at the end. An error means that the body was aborted and is
    /// incomplete.
    pub fn poll(&self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, CallError>>> {
        self.poll_part(Some(cx.waker()))
    }

    /// Returns the next part; see [`BodyReader::poll`].
    pub async fn next_part(&self) -> Option<Result<Bytes, CallError>> {
        std::future::poll_fn(|cx| self.poll(cx)).await
    }

    pub(super) fn poll_part(
        &self,
        waker: Option<&Waker>,
    ) -> Poll<Option<Result<Bytes, CallError>>> {
        let mut inflow = self.queue.lock_inbound();
        let was = inflow.unread_parts();
        let next = inflow.next_part(waker);
        // Unlocked before the wakeup: the woken endpoint locks the queue at once.
        drop(inflow);
        // Only then is the channel blocked on this body, and the endpoint may sleep over it.
        if was == MAX_UNREAD_PARTS {
            self.reports.wake_endpoint();
        }
        match next {
            NextPart::Part(part) => Poll::Ready(Some(Ok(part))),
            NextPart::End => Poll::Ready(None),
            NextPart::Broken(why) => Poll::Ready(Some(Err(why))),
            NextPart::Pending => Poll::Pending,
        }
    }

    /// Returns the size of the whole body, if the sender declared it. Unverified.
    pub fn total_bytes(&self) -> Option<u64> {
        Some(self.queue.total).filter(|total| *total != TOTAL_UNKNOWN)
    }

    /// Returns true if the whole body arrived and was read.
    pub fn is_complete(&self) -> bool {
        self.queue.lock_inbound().is_complete()
    }
}

impl Drop for BodyReader {
    fn drop(&mut self) {
        // Before `stop_reading` drops the unread parts: their releases are of no use to the sender.
        // Relaxed: a late report costs one message.
        self.queue.ended.store(true, Ordering::Relaxed);
        let more = self.queue.lock_inbound().stop_reading();
        if more {
            self.reports
                .add_report(|events| events.abandoned.push((self.channel, self.call)));
        }
    }
}

impl AsRef<[u8]> for HeldPart {
    fn as_ref(&self) -> &[u8] {
        self.payload.as_ref()
    }
}

impl Drop for HeldPart {
    fn drop(&mut self) {
        self.queue.record_release();
    }
}

impl PartQueue {
    pub(super) fn new(total: u64) -> Arc<Self> {
        let (let_go, over) = (AtomicU64::new(0), AtomicBool::new(false));
        Arc::new(Self {
            inbound: Mutex::default(),
            total,
            released: let_go,
            ended: over,
            report: OnceLock::new(),
        })
    }

    /// Wraps a message of a strict peer: dropping its bytes is reported to the sender.
    pub(super) fn hold_message(self: &Arc<Self>, message: ReceivedMessage) -> Bytes {
        Bytes::from_owner(HeldPart {
            payload: MessagePayload::new(message),
            queue: Arc::clone(self),
        })
    }

    /// Counts a released message. May run while the inbound body is locked.
    fn record_release(&self) {
        // Relaxed: reports carry the number itself, and the sender takes the highest.
        let let_go = self.released.fetch_add(1, Ordering::Relaxed) + 1;
        // Without a reader yet, the next report carries this release, too.
        let Some((left, channel, call)) = self.report.get() else {
            return;
        };
        if !self.ended.load(Ordering::Relaxed) {
            left.add_report(|events| events.add_release(*channel, *call, let_go));
        }
    }

    pub(super) fn push_part(&self, part: Bytes, last: bool) {
        if last {
            self.ended.store(true, Ordering::Relaxed);
        }
        let reader = self.lock_inbound().push_part(part, last);
        reader.into_iter().for_each(Waker::wake);
    }

    pub(super) fn break_with(&self, why: CallError) {
        self.ended.store(true, Ordering::Relaxed);
        let reader = self.lock_inbound().break_with(why);
        reader.into_iter().for_each(Waker::wake);
    }

    /// Ends reading.
    pub(super) fn stop_reading(&self) {
        self.lock_inbound().stop_reading();
    }

    /// Returns true if the reader must take a part before more is received.
    pub(super) fn is_full(&self) -> bool {
        self.lock_inbound().unread_parts() >= MAX_UNREAD_PARTS
    }

    fn lock_inbound(&self) -> MutexGuard<'_, InboundBody<CallError>> {
        self.inbound.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ReaderReports {
    pub(super) fn new(own: WakeupSignal) -> Arc<Self> {
        Arc::new(Self {
            has_pending: AtomicBool::new(false),
            pending: Mutex::default(),
            own_signal: own,
        })
    }

    pub(super) fn has_any(&self) -> bool {
        // Acquire: pairs with the Release store in `add_report`. The flag keeps idle runs off the
        // lock.
        self.has_pending.load(Ordering::Acquire)
    }

    pub(super) fn take_all(&self) -> ReaderReport {
        // Cleared before the reports are taken: one that comes in between sets the flag again.
        self.has_pending.store(false, Ordering::Release);
        std::mem::take(&mut *self.lock_pending())
    }

    fn add_report(&self, what: impl FnOnce(&mut ReaderReport)) {
        // The lock is released with this statement: the woken endpoint takes it at once.
        what(&mut self.lock_pending());
        self.has_pending.store(true, Ordering::Release);
        self.wake_endpoint();
    }

    fn lock_pending(&self) -> MutexGuard<'_, ReaderReport> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the own endpoint, if it sleeps.
    // Pairs with the fence after `announce_sleep`: the report is visible before the sleep flag is
    // read.
    fn wake_endpoint(&self) {
        fence(Ordering::SeqCst);
        self.own_signal.wake();
    }
}
