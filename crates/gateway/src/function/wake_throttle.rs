//! Rings for a sleeping function: once for the first request that waits, then once a second while any does.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How often a sleeping function's bell is rung while requests wait for it.
pub(crate) const RING: Duration = Duration::from_secs(1);

/// When a function's bell was last rung, over all threads.
#[derive(Debug)]
pub(crate) struct Bell {
    made: Instant,
    /// Milliseconds after `made`, plus one; 0: never.
    rung: AtomicU64,
}

impl Bell {
    /// A bell that was never rung.
    pub(crate) fn new(now: Instant) -> Self {
        Self { made: now, rung: AtomicU64::new(0) }
    }

    /// Whether the caller should ring now; of several who ask at the same time, one gets yes. The first of those who
    /// wait always may.
    pub(crate) fn ring(&self, now: Instant, first: bool) -> bool {
        let since =
            |from: Instant| u64::try_from(now.saturating_duration_since(from).as_millis()).unwrap_or(u64::MAX - 1);
        let at = since(self.made) + 1;
        let last = self.rung.load(Ordering::Relaxed);
        let due = first || last == 0 || at.saturating_sub(last) >= period();
        due && self.rung.compare_exchange(last, at, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

/// A little less than [`RING`], or a waiter that looks exactly each `RING` could miss every second one.
fn period() -> u64 {
    u64::try_from((RING - Duration::from_millis(50)).as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_ring_a_second() {
        let start = Instant::now();
        let bell = Bell::new(start);
        let ms = |n| start + Duration::from_millis(n);
        assert!(bell.ring(ms(0), true));
        assert!(!bell.ring(ms(500), false));
        assert!(bell.ring(ms(1_000), false));
        assert!(!bell.ring(ms(1_001), false));
        assert!(bell.ring(ms(1_002), true), "a new burst rings at once");
    }
}
