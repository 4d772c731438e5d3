//! Back-off between starts of a failing revision.
//!
//! There are two counters. Starts that never became ready are delayed from the first failure on,
//! and one success resets them. Instances that die early are replaced at once the first time, and
//! one that lives for [`STABLE_AGE`] resets them. Simultaneous failures count once: only an
//! instance started after the last failure adds information. A revision that can never start is
//! given up. A new revision begins without failures.

use std::time::{Duration, Instant};

/// First delay; each further failure doubles it.
pub const MIN_RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum delay.
pub const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(10);
/// Failed starts after which callers no longer wait for the next one.
const FAILING_STARTS: u32 = 3;
/// Minimum ready time of an instance whose death is not a failing start.
pub const STABLE_AGE: Duration = Duration::from_millis(500);

/// Failures of one revision.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StartBackoff {
    starts: BackoffSteps,
    deaths: BackoffSteps,
    given_up: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct BackoffSteps {
    level: u32,
    last: Option<Instant>,
}

impl BackoffSteps {
    fn record_failure(&mut self, started: Instant, now: Instant) {
        // Instances started before the last failure belong to the same wave.
        if self.last.is_none_or(|last| started > last) {
            *self = Self {
                level: self.level.saturating_add(1),
                last: Some(now),
            };
        }
    }

    /// Returns the end of the delay. The first `free` failures cause none.
    fn pause_end(&self, free: u32) -> Option<Instant> {
        let level = self.level.saturating_sub(free);
        self.last
            .filter(|_| level > 0)
            .map(|last| last + pause(level))
    }
}

/// Returns the delay after so many failures, at least one.
fn pause(level: u32) -> Duration {
    // More doublings would overflow, and the maximum is reached at seven.
    MIN_RETRY_INTERVAL
        .saturating_mul(1 << level.saturating_sub(1).min(16))
        .min(MAX_RETRY_INTERVAL)
}

impl StartBackoff {
    /// Records an instance that ended without having been ready.
    pub fn record_failed_start(&mut self, started: Instant, now: Instant) {
        self.starts.record_failure(started, now);
    }

    /// Gives up: no start of this revision can succeed.
    pub fn give_up(&mut self) {
        self.given_up = true;
    }

    /// Returns whether nothing is to be started any more.
    pub fn has_given_up(&self) -> bool {
        self.given_up
    }

    /// Records that an instance became ready.
    pub fn record_ready(&mut self) {
        self.starts = BackoffSteps::default();
    }

    /// Records that an instance ended by itself, after it was ready since `ready`.
    pub fn record_death(&mut self, started: Instant, ready: Instant, now: Instant) {
        match now.saturating_duration_since(ready) >= STABLE_AGE {
            true => self.deaths = BackoffSteps::default(),
            false => self.deaths.record_failure(started, now),
        }
    }

    /// Returns the earliest time of the next start; `None` for at once.
    pub fn retry_at(&self) -> Option<Instant> {
        // `None` orders before every time, so the later delay wins.
        self.starts.pause_end(0).max(self.deaths.pause_end(1))
    }

    /// Returns the maximum time until the next start of a revision that is known to fail; `None`:
    /// the next start may succeed.
    pub fn failing_interval(&self) -> Option<Duration> {
        let level = self.starts.level.max(self.deaths.level.saturating_sub(1));
        (self.given_up || level >= FAILING_STARTS).then(|| match self.given_up {
            true => MAX_RETRY_INTERVAL,
            false => pause(level),
        })
    }

    /// Returns whether starts are limited to one at a time, because the last ones failed.
    pub fn is_probing(&self) -> bool {
        self.retry_at().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_revision_is_known_to_fail_after_three_starts_and_until_one_succeeds() {
        let start = Instant::now();
        let at = |n| start + Duration::from_secs(n);
        let mut backoff = StartBackoff::default();
        let intervals = [1, 2, 3, 4].map(|n| {
            backoff.record_failed_start(at(n), at(n));
            backoff.failing_interval()
        });
        let millis = |n| Some(Duration::from_millis(n));
        assert_eq!(intervals, [None, None, millis(400), millis(800)]);
        backoff.record_ready();
        assert_eq!(backoff.failing_interval(), None);
        backoff.give_up();
        assert_eq!(backoff.failing_interval(), Some(MAX_RETRY_INTERVAL));
    }

    #[test]
    fn failing_starts_double_their_pause_until_one_succeeds() {
        let mut now = Instant::now();
        let mut backoff = StartBackoff::default();
        for expected in [100, 200, 400, 800, 1_600, 3_200, 6_400, 10_000, 10_000] {
            backoff.record_failed_start(now, now);
            let pause = backoff.retry_at().unwrap() - now;
            assert_eq!(pause, Duration::from_millis(expected));
            now += pause;
        }
        backoff.record_ready();
        assert_eq!(backoff, StartBackoff::default());
    }

    #[test]
    fn simultaneous_failures_count_once() {
        let start = Instant::now();
        let mut backoff = StartBackoff::default();
        (1..=5).for_each(|n| backoff.record_failed_start(start, start + Duration::from_millis(n)));
        assert_eq!(
            backoff.retry_at(),
            Some(start + Duration::from_millis(1) + MIN_RETRY_INTERVAL)
        );
    }

    #[test]
    fn a_second_early_death_delays_the_restart() {
        let [start, end, next, next_end] = {
            let zero = Instant::now();
            [0, 1, 2, 3].map(|ms| zero + Duration::from_millis(ms))
        };
        let mut backoff = StartBackoff::default();
        backoff.record_death(start, start, end);
        assert_eq!(backoff.retry_at(), None);
        backoff.record_ready();
        backoff.record_death(next, next, next_end);
        assert_eq!(backoff.retry_at(), Some(next_end + MIN_RETRY_INTERVAL));
        backoff.record_death(next_end, next_end, next_end + STABLE_AGE);
        assert_eq!(backoff.retry_at(), None, "the instance was stable");
    }

    #[test]
    fn levels_do_not_overflow() {
        let now = Instant::now();
        let steps = BackoffSteps {
            level: u32::MAX,
            last: Some(now),
        };
        assert_eq!(steps.pause_end(0), Some(now + MAX_RETRY_INTERVAL));
    }
}
