//! Time without traffic.

use std::time::{Duration, Instant};

use super::limits::MAX_SAMPLE_INTERVAL;

/// Time without any traffic. Only time that samples cover counts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct IdleTimer {
    idle_since: Option<Instant>,
    last: Option<Instant>,
}

impl IdleTimer {
    /// Records whether there is traffic; `None` if it is not known, which ends the idle time.
    pub(super) fn record(&mut self, now: Instant, has_traffic: Option<bool>) {
        let has_gap = self
            .last
            .is_none_or(|last| now.saturating_duration_since(last) > MAX_SAMPLE_INTERVAL);
        self.last = Some(now);
        self.idle_since = match has_traffic {
            Some(false) => self.idle_since.filter(|_| !has_gap).or(Some(now)),
            Some(true) | None => None,
        };
    }

    pub(super) fn is_idle_for(&self, now: Instant, duration: Duration) -> bool {
        self.idle_since
            .is_some_and(|since| now.saturating_duration_since(since) >= duration)
    }
}
