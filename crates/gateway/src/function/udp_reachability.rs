//! Reachability of an instance over UDP: after a failure it is skipped for a while, longer each
//! time.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

/// Pause after a first failure, in milliseconds. Doubles with each further one.
const FIRST_UDP_RETRY_DELAY_MS: u64 = 1_000;
/// Longest pause after a failure, in milliseconds.
const MAX_UDP_RETRY_DELAY_MS: u64 = 60_000;

/// Returns the time for [`UdpReachability`]: milliseconds since the first call in this process.
pub(crate) fn monotonic_millis(now: Instant) -> u64 {
    static CLOCK_START: LazyLock<Instant> = LazyLock::new(Instant::now);
    u64::try_from(now.saturating_duration_since(*CLOCK_START).as_millis()).unwrap_or(u64::MAX)
}

/// Reachability of one instance. Shared by all threads; a race may count one failure twice, which
/// is harmless.
#[derive(Debug, Default)]
pub(crate) struct UdpReachability {
    /// Time until which UDP is blocked; 0: not blocked.
    blocked_until: AtomicU64,
    /// Failures in a row.
    failures: AtomicU32,
}

impl UdpReachability {
    /// Returns whether UDP is blocked at `now`.
    pub(crate) fn is_blocked(&self, now: u64) -> bool {
        // Relaxed in this file: a thread that learns of a failure late tries UDP once more, and
        // no other data depends on it.
        now < self.blocked_until.load(Ordering::Relaxed)
    }

    /// Returns whether UDP is blocked, without reading the clock if nothing ever failed.
    pub(crate) fn is_blocked_now(&self) -> bool {
        self.blocked_until.load(Ordering::Relaxed) != 0
            && self.is_blocked(monotonic_millis(Instant::now()))
    }

    /// Notes a failure. Attempts that began before it was known add nothing.
    pub(crate) fn note_failure(&self, now: u64) {
        if self.is_blocked(now) {
            return;
        }
        // At most 16 doublings: the shift must not exceed 64 bits, and the longest pause is
        // reached after 6.
        let before = self.failures.fetch_add(1, Ordering::Relaxed).min(16);
        self.blocked_until.store(
            now + (FIRST_UDP_RETRY_DELAY_MS << before).min(MAX_UDP_RETRY_DELAY_MS),
            Ordering::Relaxed,
        );
    }

    /// Notes an answer, which ends the pause.
    pub(crate) fn note_answer(&self) {
        // The usual case only reads, so that the cache line stays shared.
        if self.blocked_until.load(Ordering::Relaxed) != 0 {
            self.blocked_until.store(0, Ordering::Relaxed);
            self.failures.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn pauses_grow_and_an_answer_ends_them() {
        let udp = UdpReachability::default();
        assert!(!udp.is_blocked(0) && !udp.is_blocked_now());
        let mut now = 5;
        for pause in [1, 2, 4, 8, 16, 32, 60, 60] {
            udp.note_failure(now);
            udp.note_failure(now); // another thread sees the same failure
            now += pause * 1_000;
            assert!(udp.is_blocked(now - 1) && !udp.is_blocked(now), "{pause}");
        }
        udp.note_failure(now);
        udp.note_answer();
        assert!(!udp.is_blocked(now));
        udp.note_failure(now);
        assert!(
            !udp.is_blocked(now + FIRST_UDP_RETRY_DELAY_MS),
            "it begins anew"
        );
    }

    proptest! {
        #[test]
        fn udp_is_tried_again_within_the_longest_pause(steps in proptest::collection::vec((0u64..100_000, any::<bool>()), 0..100)) {
            let (udp, mut now) = (UdpReachability::default(), 0);
            for (pass, answers) in steps {
                now += pass;
                if answers { udp.note_answer() } else { udp.note_failure(now) }
                prop_assert_eq!(udp.is_blocked(now), !answers);
                prop_assert!(!udp.is_blocked(now + MAX_UDP_RETRY_DELAY_MS));
            }
        }
    }
}
