//! What all keys of one destination have in common: the ceiling, who waits below it, and whether it takes connections at all.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::types::KeyId;
use super::wait_queue::LimitWaitQueue;

/// The first pause after a failure; each further one doubles it.
const MIN_RETRY_DELAY: Duration = Duration::from_millis(100);
/// The longest pause.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(30);
/// A connection that dies this young while nobody uses it was not really taken.
pub(super) const MIN_STABLE_AGE: Duration = Duration::from_secs(1);

/// One destination.
#[derive(Debug, Default)]
pub(super) struct LimitGroup {
    /// What it is called.
    pub(super) name: Box<str>,
    /// Keys that were declared for it.
    pub(super) keys: BTreeSet<KeyId>,
    /// Connections of all its keys, in whatever state.
    pub(super) open_count: u32,
    /// Of them, being closed to make room.
    pub(super) closing_count: u32,
    /// Who waits for room.
    pub(super) queue: LimitWaitQueue,
    /// Keys that would keep more if they could.
    pub(super) starved_keys: BTreeSet<KeyId>,
    /// Failures since the last success, and when it may be tried again for nobody.
    failures: u32,
    retry_at: Option<Instant>,
    last_failure: Option<Instant>,
}

impl LimitGroup {
    pub(super) fn with_name(name: &str) -> Self {
        Self {
            name: name.into(),
            ..Self::default()
        }
    }

    /// Whether connections failed lately.
    pub(super) fn is_failing(&self) -> bool {
        self.failures > 0
    }

    /// When it may be tried again for nobody, if that is not now.
    pub(super) fn paused_until(&self, now: Instant) -> Option<Instant> {
        self.retry_at.filter(|retry| *retry > now)
    }

    /// It took a connection. A failure is forgiven only after a while: some take connections and drop them.
    pub(super) fn record_success(&mut self, now: Instant) {
        self.retry_at = self
            .last_failure
            .map(|last| last + MIN_STABLE_AGE)
            .filter(|until| *until > now);
        if self.retry_at.is_none() {
            self.failures = 0;
        }
    }

    /// It did not take a connection. Connections that fail together count as one failure.
    pub(super) fn record_failure(&mut self, now: Instant) {
        self.last_failure = Some(now);
        if self.paused_until(now).is_some() {
            return;
        }
        let pause = MIN_RETRY_DELAY
            .saturating_mul(1 << self.failures.min(16))
            .min(MAX_RETRY_DELAY);
        self.failures = self.failures.saturating_add(1);
        self.retry_at = Some(now + pause);
    }

    /// How many of those who wait will not be served by what is being closed already.
    pub(super) fn unserved_waiters(&self) -> usize {
        self.queue.len().saturating_sub(self.closing_count as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_and_end_with_success() {
        let mut place = LimitGroup::with_name("db:5432");
        let mut now = Instant::now();
        let mut pauses = Vec::new();
        for _ in 0..12 {
            place.record_failure(now);
            place.record_failure(now);
            let until = place.paused_until(now).unwrap();
            pauses.push(until - now);
            now = until;
        }
        assert_eq!(
            pauses[..3],
            [MIN_RETRY_DELAY, MIN_RETRY_DELAY * 2, MIN_RETRY_DELAY * 4],
            "two at a time are one failure"
        );
        assert_eq!(pauses.last(), Some(&MAX_RETRY_DELAY));
        assert!(place.is_failing() && place.paused_until(now).is_none());
        place.record_failure(now);
        place.record_success(now + MIN_STABLE_AGE / 2);
        assert!(
            place.is_failing() && place.paused_until(now) == Some(now + MIN_STABLE_AGE),
            "it is seen whether that lasts"
        );
        place.record_success(now + MIN_STABLE_AGE);
        assert!(!place.is_failing() && place.paused_until(now).is_none());
    }
}
