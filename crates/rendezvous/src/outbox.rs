//! Outbox of a control connection: messages and frames until the connection's task sends them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use tokio::sync::mpsc;

use super::metrics::RendezvousMetrics;
use nearpath_p2p::message::{CloseReason, RendezvousMessage, detach_small_frame};

/// Maximum of items in an outbox: all grants of a worker that many have waited for, and some more.
///
/// Memory is allocated for present items only.
const MAX_OUTBOX_ITEMS: usize = 4096;

/// Item of an outbox. An outbox that closes without an end item has overflowed.
#[derive(Debug)]
pub(super) enum OutboxItem {
    /// Boxed, as a channel allocates blocks of 32 items from its beginning.
    Message(Box<RendezvousMessage>),
    Frame(Box<QueuedFrame>),
    Close(CloseReason),
}

/// Outbox of a connection; see the module.
#[derive(Debug)]
pub(super) struct ConnectionOutbox {
    items: mpsc::Sender<OutboxItem>,
    queued_bytes: Arc<AtomicUsize>,
}

/// Outbox has no capacity.
pub(super) struct OutboxFull;

impl ConnectionOutbox {
    pub(super) fn new() -> (Self, mpsc::Receiver<OutboxItem>) {
        let (items, taken) = mpsc::channel(MAX_OUTBOX_ITEMS);
        (
            Self {
                items,
                queued_bytes: Arc::default(),
            },
            taken,
        )
    }

    /// Queues an item. An outbox whose connection has ended accepts everything.
    pub(super) fn put(&self, item: OutboxItem) -> Result<(), OutboxFull> {
        match self.items.try_send(item) {
            Err(mpsc::error::TrySendError::Full(_)) => Err(OutboxFull),
            // The connection's task has ended: its items have no recipient.
            Ok(()) | Err(mpsc::error::TrySendError::Closed(_)) => Ok(()),
        }
    }

    /// Queues a frame, or drops it without capacity: messages keep half of the items to themselves.
    ///
    /// `limits`: bytes in this outbox, and in all.
    pub(super) fn put_frame(
        &self,
        frame: Bytes,
        limits: (usize, u64),
        metrics: &Arc<RendezvousMetrics>,
    ) {
        // Relaxed: both sums are estimates; a race exceeds a limit by one frame per connection.
        let (connection_bytes, all) = (
            self.queued_bytes.load(Ordering::Relaxed),
            metrics.queued_bytes.load(Ordering::Relaxed),
        );
        // Copied if small: a frame read together with others would keep their whole buffer.
        let queued = || {
            OutboxItem::Frame(Box::new(QueuedFrame::new(
                detach_small_frame(frame),
                self.queued_bytes.clone(),
                metrics.clone(),
            )))
        };
        // Frames may be lost, messages may not: half of the capacity is theirs.
        let is_half_full = self.items.capacity() <= MAX_OUTBOX_ITEMS / 2;
        if is_half_full
            || connection_bytes >= limits.0
            || all >= limits.1
            || self.put(queued()).is_err()
        {
            RendezvousMetrics::increment(&metrics.dropped_frames);
        }
    }
}

/// Frame that is counted while it is queued.
#[derive(Debug)]
pub(super) struct QueuedFrame {
    frame: Bytes,
    connection_bytes: Arc<AtomicUsize>,
    metrics: Arc<RendezvousMetrics>,
}

impl QueuedFrame {
    fn new(
        frame: Bytes,
        connection_bytes: Arc<AtomicUsize>,
        metrics: Arc<RendezvousMetrics>,
    ) -> Self {
        // Counted here and discounted in `drop`, so that no path can forget it.
        connection_bytes.fetch_add(frame.len(), Ordering::Relaxed);
        metrics
            .queued_bytes
            .fetch_add(frame.len() as u64, Ordering::Relaxed);
        Self {
            frame,
            connection_bytes,
            metrics,
        }
    }

    pub(super) fn frame(&self) -> &Bytes {
        &self.frame
    }
}

impl Drop for QueuedFrame {
    fn drop(&mut self) {
        self.connection_bytes
            .fetch_sub(self.frame.len(), Ordering::Relaxed);
        self.metrics
            .queued_bytes
            .fetch_sub(self.frame.len() as u64, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_frames_leave_capacity_for_messages() {
        let metrics = Arc::<RendezvousMetrics>::default();
        let (one, _receiver) = ConnectionOutbox::new();
        (0..2 * MAX_OUTBOX_ITEMS)
            .for_each(|_| one.put_frame(Bytes::from_static(b"x"), (1 << 20, 1 << 20), &metrics));
        assert_eq!(
            metrics.dropped_frames.load(Ordering::Relaxed),
            (MAX_OUTBOX_ITEMS + MAX_OUTBOX_ITEMS / 2) as u64
        );
        assert!(
            (0..MAX_OUTBOX_ITEMS / 2)
                .all(|_| one.put(OutboxItem::Close(CloseReason::Slow)).is_ok()),
            "words find room"
        );
        assert!(one.put(OutboxItem::Close(CloseReason::Slow)).is_err());
    }

    #[test]
    fn frames_beyond_the_limits_are_dropped_and_taken_ones_free_capacity() {
        let metrics = Arc::<RendezvousMetrics>::default();
        let (one, mut items) = ConnectionOutbox::new();
        let frame = Bytes::from_static(&[0; 100]);
        let put =
            |outbox: &ConnectionOutbox| outbox.put_frame(frame.clone(), (150, 1000), &metrics);
        (0..3).for_each(|_| put(&one));
        assert_eq!(
            (
                metrics.queued_bytes.load(Ordering::Relaxed),
                metrics.dropped_frames.load(Ordering::Relaxed)
            ),
            (200, 1)
        );
        drop(items.try_recv().unwrap());
        put(&one);
        assert_eq!(
            (
                metrics.queued_bytes.load(Ordering::Relaxed),
                metrics.dropped_frames.load(Ordering::Relaxed)
            ),
            (200, 1)
        );
        let (another, _receiver) = ConnectionOutbox::new();
        another.put_frame(frame.clone(), (150, 200), &metrics);
        assert_eq!(
            metrics.dropped_frames.load(Ordering::Relaxed),
            2,
            "there is room here, and none in all"
        );
        drop((one, items));
        assert_eq!(metrics.queued_bytes.load(Ordering::Relaxed), 0);
    }
}
