//! Lock-out of sources that guess the administrator's password. Pure: the time is an argument.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use nearpath_types::SourceNetwork;

/// Wrong logins in a row without a lock-out: people mistype, and scripts keep an old password.
const FREE_FAILURES: u32 = 10;
/// Lock-out after the next wrong login. Each further one doubles it.
const FIRST_LOCKOUT_PERIOD: Duration = Duration::from_secs(1);
/// Maximum lock-out: about 1,500 attempts a day are left to a source.
const MAX_LOCKOUT_PERIOD: Duration = Duration::from_secs(60);
/// Time after the last wrong login at which a source counts from zero again.
const FAILURE_TIMEOUT: Duration = Duration::from_secs(15 * 60);
/// Maximum sources in memory. Beyond it the one with the oldest failure is dropped.
const MAX_SOURCES: usize = 4_096;

/// Wrong logins of each source since its last right one.
#[derive(Debug, Default)]
pub(crate) struct LoginLimiter(HashMap<SourceNetwork, LoginFailures>);

#[derive(Debug, Clone, Copy)]
struct LoginFailures {
    count: u32,
    last: Instant,
}

impl LoginFailures {
    fn lockout(&self) -> Duration {
        match self.count.checked_sub(FREE_FAILURES + 1) {
            None => Duration::ZERO,
            // Six doublings exceed the maximum; more would overflow.
            Some(doublings) => {
                MAX_LOCKOUT_PERIOD.min(FIRST_LOCKOUT_PERIOD * (1 << doublings.min(6)))
            }
        }
    }

    fn is_expired(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.last) >= FAILURE_TIMEOUT
    }
}

impl LoginLimiter {
    /// Returns the rest of a source's lock-out. Its logins are refused unchecked meanwhile, right
    /// ones too: otherwise guesses would go on at full speed.
    pub(crate) fn remaining_lockout(
        &self,
        source: SourceNetwork,
        now: Instant,
    ) -> Option<Duration> {
        let failures = self.0.get(&source)?;
        let elapsed = now.saturating_duration_since(failures.last);
        let rest = failures.lockout().saturating_sub(elapsed);
        (!rest.is_zero()).then_some(rest)
    }

    /// Counts a login that was checked.
    pub(crate) fn note_login(&mut self, source: SourceNetwork, is_right: bool, now: Instant) {
        if is_right {
            self.0.remove(&source);
            return;
        }
        let known = self.0.get(&source).filter(|one| !one.is_expired(now));
        let count = known.map_or(0, |one| one.count).saturating_add(1);
        if self.0.len() >= MAX_SOURCES && !self.0.contains_key(&source) {
            self.drop_oldest();
        }
        self.0.insert(source, LoginFailures { count, last: now });
    }

    fn drop_oldest(&mut self) {
        let oldest = self.0.iter().min_by_key(|(_, failures)| failures.last);
        if let Some(source) = oldest.map(|(source, _)| *source) {
            self.0.remove(&source);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(number: u32) -> SourceNetwork {
        SourceNetwork::of(std::net::Ipv4Addr::from_bits(number).into())
    }

    /// Fails `count` logins, each as soon as it is checked; returns the time of the last.
    fn fail(
        limiter: &mut LoginLimiter,
        from: SourceNetwork,
        count: u32,
        start: Instant,
    ) -> Instant {
        let mut now = start;
        for _ in 0..count {
            now += limiter.remaining_lockout(from, now).unwrap_or_default();
            limiter.note_login(from, false, now);
        }
        now
    }

    #[test]
    fn each_wrong_login_after_ten_doubles_the_lockout_up_to_a_minute() {
        let (mut limiter, start) = (LoginLimiter::default(), Instant::now());
        let guesser = source(1);
        let mut now = fail(&mut limiter, guesser, 10, start);
        assert_eq!(now, start, "people mistype");
        for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
            now = fail(&mut limiter, guesser, 1, now);
            let lockout = limiter.remaining_lockout(guesser, now);
            assert_eq!(lockout, Some(Duration::from_secs(seconds)));
        }
        assert_eq!(limiter.remaining_lockout(source(2), now), None);
    }

    #[test]
    fn a_right_login_and_a_pause_end_the_count() {
        let (mut limiter, start) = (LoginLimiter::default(), Instant::now());
        let now = fail(&mut limiter, source(1), 10, start);
        limiter.note_login(source(1), true, now);
        limiter.note_login(source(1), false, now);
        assert_eq!(limiter.remaining_lockout(source(1), now), None);
        let now = fail(&mut limiter, source(2), 12, start) + FAILURE_TIMEOUT;
        limiter.note_login(source(2), false, now);
        assert_eq!(limiter.remaining_lockout(source(2), now), None);
    }

    #[test]
    fn the_table_is_bounded_and_keeps_those_who_guess() {
        let (mut limiter, start) = (LoginLimiter::default(), Instant::now());
        limiter.note_login(source(0), false, start);
        let now = start + Duration::from_secs(1);
        for number in 1..=MAX_SOURCES as u32 {
            limiter.note_login(source(number), false, now);
        }
        assert_eq!(limiter.0.len(), MAX_SOURCES);
        assert!(
            !limiter.0.contains_key(&source(0)),
            "its failure is the oldest"
        );
    }
}
