//! Rings for a sleeping function: once for the first request that waits, then once a second while any does.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How often a sleeping function's bell is rung while requests wait for it.
pub(crate) const WAKE_INTERVAL: Duration = Duration::from_secs(1);

/// When a function's bell was last rung, over all threads.
#[derive(Debug)]
pub(crate) struct WakeThrottle {
    created_at: Instant,
    /// Milliseconds after `made`, plus one; 0: never.
    last_wake: AtomicU64,
}

impl WakeThrottle {
    /// A bell that was never rung.
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            created_at: now,
            last_wake: AtomicU64::new(0),
        }
    }

    /// Whether the caller should ring now; of several who ask at the same time, one gets yes. The first of those who
    /// wait always may.
    pub(crate) fn claim_wake(&self, now: Instant, is_first: bool) -> bool {
        let since = |from: Instant| {
            u64::try_from(now.saturating_duration_since(from).as_millis()).unwrap_or(u64::MAX - 1)
        };
        let now_millis = since(self.created_at) + 1;
        let last = self.last_wake.load(Ordering::Relaxed);
        let due = is_first || last == 0 || now_millis.saturating_sub(last) >= min_wake_millis();
        due && self
            .last_wake
            .compare_exchange(last, now_millis, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
    }
}

/// A little less than [`WAKE_INTERVAL`], or a waiter that looks exactly each `WAKE_INTERVAL` could miss every second one.
fn min_wake_millis() -> u64 {
    u64::try_from((WAKE_INTERVAL - Duration::from_millis(50)).as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_wake_a_second() {
        let start = Instant::now();
        let throttle = WakeThrottle::new(start);
        let ms = |n| start + Duration::from_millis(n);
        assert!(throttle.claim_wake(ms(0), true));
        assert!(!throttle.claim_wake(ms(500), false));
        assert!(throttle.claim_wake(ms(1_000), false));
        assert!(!throttle.claim_wake(ms(1_001), false));
        assert!(
            throttle.claim_wake(ms(1_002), true),
            "a new burst rings at once"
        );
    }
}
