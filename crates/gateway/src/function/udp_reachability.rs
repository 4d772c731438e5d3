//! Whether an instance is worth a try over UDP: one that did not answer is left alone for a while, longer each time.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

/// First and longest pause after it did not answer, in milliseconds.
const PAUSE: (u64, u64) = (1_000, 60_000);

/// Time as [`Reach`] counts it: milliseconds since the process first asked.
pub(crate) fn millis(now: Instant) -> u64 {
    static BEGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
    u64::try_from(now.saturating_duration_since(*BEGIN).as_millis()).unwrap_or(u64::MAX)
}

/// See the module's text. Shared by all threads; what two of them learn at once counts once or twice, and either does.
#[derive(Debug, Default)]
pub(crate) struct Reach {
    /// Blocked before this moment; 0: it is not.
    until: AtomicU64,
    /// How often in a row it did not answer.
    failures: AtomicU32,
}

impl Reach {
    /// Whether it is left alone at `now`.
    pub(crate) fn is_blocked(&self, now: u64) -> bool {
        now < self.until.load(Ordering::Relaxed)
    }

    /// The same, without asking for the time where nothing ever failed.
    pub(crate) fn is_blocked_now(&self) -> bool {
        self.until.load(Ordering::Relaxed) != 0 && self.is_blocked(millis(Instant::now()))
    }

    /// It did not answer. Those who had begun before it was known add nothing.
    pub(crate) fn failed(&self, now: u64) {
        if self.is_blocked(now) {
            return;
        }
        let before = self.failures.fetch_add(1, Ordering::Relaxed).min(16);
        self.until.store(now + (PAUSE.0 << before).min(PAUSE.1), Ordering::Relaxed);
    }

    /// It answered.
    pub(crate) fn answered(&self) {
        if self.until.load(Ordering::Relaxed) != 0 {
            self.until.store(0, Ordering::Relaxed);
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
        let reach = Reach::default();
        assert!(!reach.is_blocked(0) && !reach.is_blocked_now());
        let mut now = 5;
        for pause in [1, 2, 4, 8, 16, 32, 60, 60] {
            reach.failed(now);
            reach.failed(now); // another thread, the same silence
            now += pause * 1_000;
            assert!(reach.is_blocked(now - 1) && !reach.is_blocked(now), "{pause}");
        }
        reach.failed(now);
        reach.answered();
        assert!(!reach.is_blocked(now));
        reach.failed(now);
        assert!(!reach.is_blocked(now + PAUSE.0), "it begins anew");
    }

    proptest! {
        #[test]
        fn it_is_tried_again_within_the_longest_pause(steps in proptest::collection::vec((0u64..100_000, any::<bool>()), 0..100)) {
            let (reach, mut now) = (Reach::default(), 0);
            for (pass, answers) in steps {
                now += pass;
                if answers { reach.answered() } else { reach.failed(now) }
                prop_assert_eq!(reach.is_blocked(now), !answers);
                prop_assert!(!reach.is_blocked(now + PAUSE.1));
            }
        }
    }
}
