//! State that all keys of one destination share: the limit, the wait queue and failures.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::types::KeyId;
use super::wait_queue::LimitWaitQueue;

/// Delay after the first failure; each further failure doubles it.
const MIN_RETRY_DELAY: Duration = Duration::from_millis(100);
/// Maximum delay after a failure.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(30);
/// Age below which the death of an unused connection counts as a failed connect: some servers
/// accept and then drop.
pub(super) const MIN_STABLE_AGE: Duration = Duration::from_secs(1);

/// Keys whose connections count together.
#[derive(Debug, Default)]
pub(super) struct LimitGroup {
    /// Name of the group.
    pub(super) name: Box<str>,
    /// Keys of the group.
    pub(super) keys: BTreeSet<KeyId>,
    /// Connections of all its keys, in any phase.
    pub(super) open_count: u32,
    /// Connections being closed to free their slots.
    pub(super) closing_count: u32,
    /// Clients that wait for a slot.
    pub(super) queue: LimitWaitQueue,
    /// Keys that would keep more connections if there were slots.
    pub(super) starved_keys: BTreeSet<KeyId>,
    /// Failures since the last success, and when the next connect ahead of use is allowed.
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

    /// Returns true if recent connects failed.
    pub(super) fn is_failing(&self) -> bool {
        self.failures > 0
    }

    /// Returns when a connect ahead of use is allowed again, if that is not now.
    pub(super) fn paused_until(&self, now: Instant) -> Option<Instant> {
        self.retry_at.filter(|retry| *retry > now)
    }

    /// Records a successful connect. A failure is cleared only after a while, because some servers
    /// accept and then drop.
    pub(super) fn record_success(&mut self, now: Instant) {
        // The pause ends early, but not before the connection has proved stable.
        self.retry_at = self
            .last_failure
            .map(|last| last + MIN_STABLE_AGE)
            .filter(|until| *until > now);
        if self.retry_at.is_none() {
            self.failures = 0;
        }
    }

    /// Records a failed connect. Failures during one pause count once.
    pub(super) fn record_failure(&mut self, now: Instant) {
        self.last_failure = Some(now);
        // Connects that ran at the same time fail together and count once.
        if self.paused_until(now).is_some() {
            return;
        }
        // Exponential backoff. The shift is bounded against overflow.
        let pause = MIN_RETRY_DELAY
            .saturating_mul(1 << self.failures.min(16))
            .min(MAX_RETRY_DELAY);
        self.failures = self.failures.saturating_add(1);
        self.retry_at = Some(now + pause);
    }

    /// Returns how many waiters the slots being freed will not serve.
    pub(super) fn unserved_waiters(&self) -> usize {
        self.queue.len().saturating_sub(self.closing_count as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_and_end_with_success() {
        let mut group = LimitGroup::with_name("db:5432");
        let mut now = Instant::now();
        let mut pauses = Vec::new();
        for _ in 0..12 {
            group.record_failure(now);
            group.record_failure(now);
            let until = group.paused_until(now).unwrap();
            pauses.push(until - now);
            now = until;
        }
        assert_eq!(
            pauses[..3],
            [MIN_RETRY_DELAY, MIN_RETRY_DELAY * 2, MIN_RETRY_DELAY * 4],
            "two at a time are one failure"
        );
        assert_eq!(pauses.last(), Some(&MAX_RETRY_DELAY));
        assert!(group.is_failing() && group.paused_until(now).is_none());
        group.record_failure(now);
        group.record_success(now + MIN_STABLE_AGE / 2);
        assert!(
            group.is_failing() && group.paused_until(now) == Some(now + MIN_STABLE_AGE),
            "the success must last first"
        );
        group.record_success(now + MIN_STABLE_AGE);
        assert!(!group.is_failing() && group.paused_until(now).is_none());
    }
}
