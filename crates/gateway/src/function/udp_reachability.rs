//! Whether an instance is worth a try over UDP: one that did not answer is left alone for a while, longer each time.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

/// First and longest pause after it did not answer, in milliseconds.
const UDP_RETRY_DELAY_MS: (u64, u64) = (1_000, 60_000);

/// Time as [`UdpReachability`] counts it: milliseconds since the process first asked.
pub(crate) fn monotonic_millis(now: Instant) -> u64 {
    static CLOCK_START: LazyLock<Instant> = LazyLock::new(Instant::now);
    u64::try_from(now.saturating_duration_since(*CLOCK_START).as_millis()).unwrap_or(u64::MAX)
}

/// See the module's text. Shared by all threads; what two of them learn at once counts once or twice, and either does.
#[derive(Debug, Default)]
pub(crate) struct UdpReachability {
    /// Blocked before this moment; 0: it is not.
    blocked_until: AtomicU64,
    /// How often in a row it did not answer.
    failures: AtomicU32,
}

impl UdpReachability {
    /// Whether it is left alone at `now`.
    pub(crate) fn is_blocked(&self, now: u64) -> bool {
        now < self.blocked_until.load(Ordering::Relaxed)
    }

    /// The same, without asking for the time where nothing ever failed.
    pub(crate) fn is_blocked_now(&self) -> bool {
        self.blocked_until.load(Ordering::Relaxed) != 0
            && self.is_blocked(monotonic_millis(Instant::now()))
    }

    /// It did not answer. Those who had begun before it was known add nothing.
    pub(crate) fn note_failure(&self, now: u64) {
        if self.is_blocked(now) {
            return;
        }
        let before = self.failures.fetch_add(1, Ordering::Relaxed).min(16);
        self.blocked_until.store(
            now + (UDP_RETRY_DELAY_MS.0 << before).min(UDP_RETRY_DELAY_MS.1),
            Ordering::Relaxed,
        );
    }

    /// It answered.
    pub(crate) fn note_answer(&self) {
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
            udp.note_failure(now); // another thread, the same silence
            now += pause * 1_000;
            assert!(udp.is_blocked(now - 1) && !udp.is_blocked(now), "{pause}");
        }
        udp.note_failure(now);
        udp.note_answer();
        assert!(!udp.is_blocked(now));
        udp.note_failure(now);
        assert!(
            !udp.is_blocked(now + UDP_RETRY_DELAY_MS.0),
            "it begins anew"
        );
    }

    proptest! {
        #[test]
        fn it_is_tried_again_within_the_longest_pause(steps in proptest::collection::vec((0u64..100_000, any::<bool>()), 0..100)) {
            let (udp, mut now) = (UdpReachability::default(), 0);
            for (pass, answers) in steps {
                now += pass;
                if answers { udp.note_answer() } else { udp.note_failure(now) }
                prop_assert_eq!(udp.is_blocked(now), !answers);
                prop_assert!(!udp.is_blocked(now + UDP_RETRY_DELAY_MS.1));
            }
        }
    }
}
