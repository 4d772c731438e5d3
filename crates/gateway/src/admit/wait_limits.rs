//! How long one request may wait, and when the bell is rung for it. Time is an argument.

use std::time::{Duration, Instant};

use nearpath_types::{FunctionPolicy, Reason};

use crate::function::WAKE_INTERVAL;

/// One request's patience.
#[derive(Debug, Clone, Copy)]
pub(super) struct WaitLimits {
    started_at: Instant,
    queue_limit: Instant,
    cold_limit: Instant,
    deadline: Instant,
}

/// What to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WaitDecision {
    /// Look again then.
    WaitUntil(Instant),
    /// Refuse, for this reason.
    Refuse(Reason),
}

impl WaitLimits {
    /// Starts waiting at `now`; `own` is the request's own deadline.
    pub(super) fn new(now: Instant, policy: &FunctionPolicy, deadline: Instant) -> Self {
        Self {
            started_at: now,
            queue_limit: now + policy.queue_timeout,
            cold_limit: now + policy.cold_timeout,
            deadline: deadline,
        }
    }

    /// How long it has been.
    pub(super) fn waited_for(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.started_at)
    }

    /// Whether the request's own deadline is what ends the wait.
    pub(super) fn is_deadline_passed(&self, now: Instant) -> bool {
        now >= self.deadline
    }

    /// Judges the wait. `cold`: no instance is ready, so the longer patience applies and the bell is rung each [`WAKE_INTERVAL`].
    pub(super) fn decide(&self, now: Instant, is_cold: bool) -> WaitDecision {
        let (limit, reason) = if is_cold {
            (self.cold_limit, Reason::ColdTimeout)
        } else {
            (self.queue_limit, Reason::QueueTimeout)
        };
        let limit = limit.min(self.deadline);
        match now >= limit {
            true => WaitDecision::Refuse(reason),
            false if is_cold => WaitDecision::WaitUntil(limit.min(now + WAKE_INTERVAL)),
            false => WaitDecision::WaitUntil(limit),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_wait_has_its_own_limit() {
        let start = Instant::now();
        let seconds = |n| start + Duration::from_secs(n);
        let limits = WaitLimits::new(start, &FunctionPolicy::default(), seconds(60)); // queue 10 s, cold 30 s
        assert_eq!(
            limits.decide(start, false),
            WaitDecision::WaitUntil(seconds(10))
        );
        assert_eq!(
            limits.decide(start, true),
            WaitDecision::WaitUntil(seconds(1))
        );
        assert_eq!(
            limits.decide(seconds(10), false),
            WaitDecision::Refuse(Reason::QueueTimeout)
        );
        assert_eq!(
            limits.decide(seconds(10), true),
            WaitDecision::WaitUntil(seconds(11))
        );
        assert_eq!(
            limits.decide(seconds(30), true),
            WaitDecision::Refuse(Reason::ColdTimeout)
        );
    }

    #[test]
    fn the_requests_own_deadline_ends_the_wait_early() {
        let start = Instant::now();
        let deadline = start + Duration::from_millis(200);
        let limits = WaitLimits::new(start, &FunctionPolicy::default(), deadline);
        assert_eq!(
            limits.decide(start, true),
            WaitDecision::WaitUntil(deadline)
        );
        assert_eq!(
            limits.decide(deadline, true),
            WaitDecision::Refuse(Reason::ColdTimeout)
        );
        assert!(limits.is_deadline_passed(deadline) && !limits.is_deadline_passed(start));
    }
}
