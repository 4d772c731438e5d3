//! Limits of a request's wait, and the times to wake its function. Time is an argument.

use std::time::{Duration, Instant};

use nearpath_types::{FunctionPolicy, Reason};

use crate::function::WAKE_INTERVAL;

/// Longest wait for a node that runs the function: longer than the restart of a node in order, and than a
/// node that does not answer counts as up. Nothing that waits brings the node back.
const NODE_TIMEOUT: Duration = Duration::from_secs(5);

/// Part that a waiting request lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MissingPart {
    /// A free place.
    Place,
    /// A ready instance.
    Instance,
    /// A connection to a node that may run the function.
    Node,
}

/// Points in time that end the wait of one request.
#[derive(Debug, Clone, Copy)]
pub(super) struct WaitLimits {
    started_at: Instant,
    queue_limit: Instant,
    cold_limit: Instant,
    node_limit: Instant,
    deadline: Instant,
}

/// Next step of a waiting request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WaitDecision {
    /// Check again at this time.
    WaitUntil(Instant),
    /// Refuse the request for this reason.
    Refuse(Reason),
}

impl WaitLimits {
    /// Starts the wait at `now`. `deadline` is the deadline of the whole request.
    pub(super) fn new(now: Instant, policy: &FunctionPolicy, deadline: Instant) -> Self {
        Self {
            started_at: now,
            queue_limit: now + policy.queue_timeout,
            cold_limit: now + policy.cold_timeout,
            node_limit: now + policy.cold_timeout.min(NODE_TIMEOUT),
            deadline,
        }
    }

    /// Returns the time since the wait began.
    pub(super) fn waited_for(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.started_at)
    }

    /// Returns whether the deadline of the whole request ends the wait.
    pub(super) fn is_deadline_passed(&self, now: Instant) -> bool {
        now >= self.deadline
    }

    /// Decides the next step, at least each [`WAKE_INTERVAL`]. Each missing part has its own limit.
    pub(super) fn decide(&self, now: Instant, missing: MissingPart) -> WaitDecision {
        let (limit, reason) = match missing {
            MissingPart::Place => (self.queue_limit, Reason::QueueTimeout),
            MissingPart::Instance => (self.cold_limit, Reason::ColdTimeout),
            MissingPart::Node => (self.node_limit, Reason::ColdTimeout),
        };
        // A request that is over cannot be answered in time, even if its turn came.
        let limit = limit.min(self.deadline);
        match now >= limit {
            true => WaitDecision::Refuse(reason),
            false => WaitDecision::WaitUntil(limit.min(now + WAKE_INTERVAL)),
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
        // Queue 10 s, cold 30 s.
        let limits = WaitLimits::new(start, &FunctionPolicy::default(), seconds(60));
        assert_eq!(
            limits.decide(start, MissingPart::Place),
            WaitDecision::WaitUntil(seconds(1))
        );
        assert_eq!(
            limits.decide(start, MissingPart::Instance),
            WaitDecision::WaitUntil(seconds(1))
        );
        assert_eq!(
            limits.decide(seconds(10), MissingPart::Place),
            WaitDecision::Refuse(Reason::QueueTimeout)
        );
        assert_eq!(
            limits.decide(seconds(10), MissingPart::Instance),
            WaitDecision::WaitUntil(seconds(11))
        );
        assert_eq!(
            limits.decide(seconds(30), MissingPart::Instance),
            WaitDecision::Refuse(Reason::ColdTimeout)
        );
        assert_eq!(
            limits.decide(seconds(4), MissingPart::Node),
            WaitDecision::WaitUntil(seconds(5))
        );
        assert_eq!(
            limits.decide(seconds(5), MissingPart::Node),
            WaitDecision::Refuse(Reason::ColdTimeout)
        );
    }

    #[test]
    fn the_requests_own_deadline_ends_the_wait_early() {
        let start = Instant::now();
        let deadline = start + Duration::from_millis(200);
        let limits = WaitLimits::new(start, &FunctionPolicy::default(), deadline);
        assert_eq!(
            limits.decide(start, MissingPart::Instance),
            WaitDecision::WaitUntil(deadline)
        );
        assert_eq!(
            limits.decide(deadline, MissingPart::Instance),
            WaitDecision::Refuse(Reason::ColdTimeout)
        );
        assert!(limits.is_deadline_passed(deadline) && !limits.is_deadline_passed(start));
    }
}
