//! Exponential backoff between channels of one pair.

use crate::clock::MonotonicNanos;

use super::DRAIN_TIMEOUT;

/// Backoff of two endpoints whose channel broke or could not be created. An endpoint that breaks
/// every channel costs the node one channel a minute.
#[derive(Debug, Default)]
pub(super) struct ReconnectBackoff {
    pub(super) failures: u32,
    pub(super) retry_at: MonotonicNanos,
    pub(super) is_waiting: bool,
}

impl ReconnectBackoff {
    /// Schedules the next attempt after [`DRAIN_TIMEOUT`], doubled each time, at most 64-fold.
    pub(super) fn record_failure(&mut self, now: MonotonicNanos) {
        // 2^6 × 1 s: about a minute.
        self.retry_at = now + (DRAIN_TIMEOUT << self.failures.min(6));
        self.failures += 1;
        self.is_waiting = true;
    }
}
