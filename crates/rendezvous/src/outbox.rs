//! A line's letter box: what its worker is to be told, until the line's task takes it out.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use tokio::sync::mpsc;

use super::metrics::RendezvousMetrics;
use nearpath_p2p::message::{CloseReason, RendezvousMessage, detach_small_frame};

/// So many messages may lie in a letter box: all grants of a worker for whom many have waited, and some more. Memory is
/// taken for those that are there.
const MAX_OUTBOX_ITEMS: usize = 4096;

/// What a line's task takes out of its box. A box that is closed without an end is one that overflowed.
#[derive(Debug)]
pub(super) enum OutboxItem {
    /// Boxed: a letter box takes the room of 32 letters from its beginning.
    Message(Box<RendezvousMessage>),
    Frame(Box<QueuedFrame>),
    Close(CloseReason),
}

/// See the module.
#[derive(Debug)]
pub(super) struct ConnectionOutbox {
    items: mpsc::Sender<OutboxItem>,
    queued_bytes: Arc<AtomicUsize>,
}

/// There is no room for a letter.
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

    /// A box whose line has gone takes everything.
    pub(super) fn put(&self, item: OutboxItem) -> Result<(), OutboxFull> {
        match self.items.try_send(item) {
            Err(mpsc::error::TrySendError::Full(_)) => Err(OutboxFull),
            Ok(()) | Err(mpsc::error::TrySendError::Closed(_)) => Ok(()),
        }
    }

    /// A parcel for which there is no room, here or in all boxes together, is dropped: words have half of a box's places for themselves.
    /// `room`: for both, in bytes.
    pub(super) fn put_frame(
        &self,
        frame: Bytes,
        limits: (usize, u64),
        metrics: &Arc<RendezvousMetrics>,
    ) {
        let (connection_bytes, all) = (
            self.queued_bytes.load(Ordering::Relaxed),
            metrics.queued_bytes.load(Ordering::Relaxed),
        );
        let queued = || {
            OutboxItem::Frame(Box::new(QueuedFrame::new(
                detach_small_frame(frame),
                self.queued_bytes.clone(),
                metrics.clone(),
            )))
        };
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

/// A parcel that is counted for as long as it lies in a box.
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
        connection_bytes.fetch_add(frame.len(), Ordering::Relaxed);
        metrics
            .queued_bytes
            .fetch_add(frame.len() as u64, Ordering::Relaxed);
        Self {
            frame,
            connection_bytes: connection_bytes,
            metrics: metrics,
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
        let (one, _letters) = ConnectionOutbox::new();
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
        let (another, _letters) = ConnectionOutbox::new();
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
