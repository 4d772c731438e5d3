//! Wake-ups of a function without instances: at once for the first waiting request, then once a
//! second.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Interval of wake-ups while requests wait for a function.
pub(crate) const WAKE_INTERVAL: Duration = Duration::from_secs(1);

/// Time of a function's last wake-up, over all threads.
#[derive(Debug)]
pub(crate) struct WakeThrottle {
    created_at: Instant,
    /// Milliseconds after `created_at`, plus one; 0: never.
    last_wake: AtomicU64,
}

impl WakeThrottle {
    /// Creates a throttle without a wake-up.
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            created_at: now,
            last_wake: AtomicU64::new(0),
        }
    }

    /// Returns whether the caller should wake the function now. Of several concurrent callers,
    /// one gets true. The first waiting request always may.
    pub(crate) fn claim_wake(&self, now: Instant, is_first: bool) -> bool {
        let since = |from: Instant| {
            u64::try_from(now.saturating_duration_since(from).as_millis()).unwrap_or(u64::MAX - 1)
        };
        let now_millis = since(self.created_at) + 1;
        let last = self.last_wake.load(Ordering::Relaxed);
        let due = is_first || last == 0 || now_millis.saturating_sub(last) >= min_wake_millis();
        // Relaxed: the exchange alone elects the one caller, and the wake-up itself carries no
        // data.
        due && self
            .last_wake
            .compare_exchange(last, now_millis, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
    }
}

/// Returns a little less than [`WAKE_INTERVAL`]: a waiter that checks at that interval could
/// otherwise miss every second one.
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
