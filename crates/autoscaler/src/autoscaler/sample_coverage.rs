//! Time since which samples have come without a gap.

use std::time::{Duration, Instant};

use super::limits::MAX_SAMPLE_INTERVAL;

/// Time that samples with a known load cover. After a gap the windows hold too little for a
/// scale-down.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct SampleCoverage {
    since: Option<Instant>,
    last: Option<Instant>,
}

impl SampleCoverage {
    /// Records a sample with a known load.
    pub(super) fn record(&mut self, now: Instant) {
        if self.is_stale(now) {
            self.since = Some(now);
        }
        self.last = Some(now);
    }

    /// Forgets all samples.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Returns whether the load is not known at `now`.
    pub(super) fn is_stale(&self, now: Instant) -> bool {
        self.last
            .is_none_or(|last| now.saturating_duration_since(last) > MAX_SAMPLE_INTERVAL)
    }

    /// Returns whether samples have come for so long without a gap.
    pub(super) fn covers(&self, now: Instant, window: Duration) -> bool {
        self.since
            .is_some_and(|since| now.saturating_duration_since(since) >= window)
    }
}
