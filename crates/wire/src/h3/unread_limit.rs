//! What a peer has sent and nobody has taken yet. `h3` gathers a frame that is not data until it is complete, however long it
//! claims to be: the limit is here, below it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Clones count together. Atomic only so that a request's body can go to another thread.
#[derive(Debug, Clone)]
pub(super) struct UnreadLimit {
    remaining: Arc<AtomicU64>,
    max_bytes: u64,
}

impl UnreadLimit {
    /// At most so many bytes.
    pub(super) fn new(max_bytes: u64) -> Self {
        Self {
            remaining: Arc::new(AtomicU64::new(max_bytes)),
            max_bytes: max_bytes,
        }
    }

    /// Bytes came. False: they are too many.
    pub(super) fn count_received(&self, bytes: usize) -> bool {
        let remaining = self
            .remaining
            .load(Ordering::Relaxed)
            .checked_sub(bytes as u64);
        self.remaining
            .store(remaining.unwrap_or(0), Ordering::Relaxed);
        remaining.is_some()
    }

    /// What came was taken: all of it again may come.
    pub(super) fn reset_budget(&self) {
        self.remaining.store(self.max_bytes, Ordering::Relaxed);
    }

    /// So many more may come, without any being taken; never more than at first, or a patient peer could save them up.
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
