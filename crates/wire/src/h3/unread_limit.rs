//! Limit of received bytes that were not consumed yet. The `h3` crate buffers a non-data frame
//! until it is complete, whatever length it claims. This limit applies below it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Byte budget of a stream. Clones share it. Atomic only because a request's body may move to
/// another thread.
#[derive(Debug, Clone)]
pub(super) struct UnreadLimit {
    remaining: Arc<AtomicU64>,
    max_bytes: u64,
}

impl UnreadLimit {
    /// Creates a budget of `max_bytes`.
    pub(super) fn new(max_bytes: u64) -> Self {
        Self {
            remaining: Arc::new(AtomicU64::new(max_bytes)),
            max_bytes,
        }
    }

    /// Counts received bytes. Returns false if they exceed the budget.
    pub(super) fn count_received(&self, bytes: usize) -> bool {
        let remaining = self
            .remaining
            .load(Ordering::Relaxed)
            .checked_sub(bytes as u64);
        self.remaining
            .store(remaining.unwrap_or(0), Ordering::Relaxed);
        remaining.is_some()
    }

    /// Restores the whole budget after the received bytes were consumed.
    pub(super) fn reset_budget(&self) {
        self.remaining.store(self.max_bytes, Ordering::Relaxed);
    }

    /// Adds to the budget although nothing was consumed. The budget never exceeds its initial size,
    /// or a slow peer could accumulate it.
    pub(super) fn grant_bytes(&self, bytes: u64) {
        let remaining = self.remaining.load(Ordering::Relaxed).saturating_add(bytes);
        self.remaining
            .store(remaining.min(self.max_bytes), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unread_bytes_are_bounded() {
        let limit = UnreadLimit::new(10);
        assert!(
            limit.count_received(6) && limit.clone().count_received(4) && !limit.count_received(1)
        );
        limit.reset_budget();
        assert!(limit.count_received(10) && !limit.count_received(1));
        limit.grant_bytes(3);
        assert!(limit.count_received(3) && !limit.count_received(1));
        (0..100).for_each(|_| limit.grant_bytes(3));
        assert!(
            limit.count_received(10) && !limit.count_received(1),
            "nothing is saved up"
        );
    }
}
