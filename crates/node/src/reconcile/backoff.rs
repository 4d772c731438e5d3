//! How long to wait before the next start of a revision that fails.
//!
//! Two ladders: starts that never got ready wait from the first failure on and are forgiven by one success; instances
//! that die early are replaced at once the first time, and are forgiven when one lives for [`STABLE`]. Instances that
//! fail together count as one failure: only one that was started after the last failure tells something new. A revision
//! that cannot start at all is given up; a new one begins with a clean slate.

use std::time::{Duration, Instant};

/// The first pause; each further failure doubles it.
pub const SHORTEST: Duration = Duration::from_millis(100);
/// The longest pause.
pub const LONGEST: Duration = Duration::from_secs(10);
/// How long an instance must have been ready for its death not to count as a failing start.
pub const STABLE: Duration = Duration::from_millis(500);

/// The failures of one revision.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Backoff {
    starts: Ladder,
    deaths: Ladder,
    given_up: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Ladder {
    level: u32,
    last: Option<Instant>,
}

impl Ladder {
    fn climb(&mut self, started: Instant, now: Instant) {
        if self.last.is_none_or(|last| started > last) {
            *self = Self { level: self.level.saturating_add(1), last: Some(now) };
        }
    }

    /// When the pause of so many failures ends; the first `free` ones cost none.
    fn until(&self, free: u32) -> Option<Instant> {
        let doublings = self.level.saturating_sub(free).checked_sub(1)?;
        let pause = SHORTEST.saturating_mul(1 << doublings.min(16)).min(LONGEST);
        self.last.map(|last| last + pause)
    }
}

impl Backoff {
    /// An instance that was started at `started` ended without having been ready.
    pub fn start_failed(&mut self, started: Instant, now: Instant) {
        self.starts.climb(started, now);
    }

    /// No start of this revision can succeed.
    pub fn give_up(&mut self) {
        self.given_up = true;
    }

    /// Whether nothing is to be started any more.
    pub fn has_given_up(&self) -> bool {
        self.given_up
    }

    /// An instance became ready.
    pub fn became_ready(&mut self) {
        self.starts = Ladder::default();
    }

    /// An instance died by itself, after having been ready since `ready`.
    pub fn died(&mut self, started: Instant, ready: Instant, now: Instant) {
        match now.saturating_duration_since(ready) >= STABLE {
            true => self.deaths = Ladder::default(),
            false => self.deaths.climb(started, now),
        }
    }

    /// Before when nothing may be started; `None`: at once.
    pub fn retry_at(&self) -> Option<Instant> {
        self.starts.until(0).max(self.deaths.until(1))
    }

    /// Whether one start at a time is enough, because the last ones failed.
    pub fn is_probing(&self) -> bool {
        self.retry_at().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failing_starts_double_up_to_the_longest_and_one_success_forgives() {
        let mut now = Instant::now();
        let mut backoff = Backoff::default();
        for expected in [100, 200, 400, 800, 1_600, 3_200, 6_400, 10_000, 10_000] {
            backoff.start_failed(now, now);
            let pause = backoff.retry_at().unwrap() - now;
            assert_eq!(pause, Duration::from_millis(expected));
            now += pause;
        }
        backoff.became_ready();
        assert_eq!(backoff, Backoff::default());
    }

    #[test]
    fn a_wave_of_failures_counts_once() {
        let start = Instant::now();
        let mut backoff = Backoff::default();
        (1..=5).for_each(|n| backoff.start_failed(start, start + Duration::from_millis(n)));
        assert_eq!(backoff.retry_at(), Some(start + Duration::from_millis(1) + SHORTEST));
    }

    #[test]
    fn the_first_death_is_free_the_second_is_not() {
        let [start, end, next, next_end] = {
            let zero = Instant::now();
            [0, 1, 2, 3].map(|ms| zero + Duration::from_millis(ms))
        };
        let mut backoff = Backoff::default();
        backoff.died(start, start, end);
        assert_eq!(backoff.retry_at(), None);
        backoff.became_ready();
        backoff.died(next, next, next_end);
        assert_eq!(backoff.retry_at(), Some(next_end + SHORTEST));
        backoff.died(next_end, next_end, next_end + STABLE);
        assert_eq!(backoff.retry_at(), None, "it lived long enough");
    }

    #[test]
    fn levels_do_not_overflow() {
        let now = Instant::now();
        let ladder = Ladder { level: u32::MAX, last: Some(now) };
        assert_eq!(ladder.until(0), Some(now + LONGEST));
    }
}
