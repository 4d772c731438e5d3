//! How long one request may wait, and when the bell is rung for it. Time is an argument.

use std::time::{Duration, Instant};

use nearpath_types::{Policy, Reason};

use crate::function::RING;

/// One request's patience.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    since: Instant,
    busy: Instant,
    cold: Instant,
    own: Instant,
}

/// What to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Look again then.
    Until(Instant),
    /// Refuse, for this reason.
    Refuse(Reason),
}

impl Patience {
    /// Starts waiting at `now`; `own` is the request's own deadline.
    pub(super) fn new(now: Instant, policy: &Policy, own: Instant) -> Self {
        Self { since: now, busy: now + policy.queue_timeout, cold: now + policy.cold_timeout, own }
    }

    /// How long it has been.
    pub(super) fn waited(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.since)
    }

    /// Whether the request's own deadline is what ends the wait.
    pub(super) fn own_deadline_passed(&self, now: Instant) -> bool {
        now >= self.own
    }

    /// Judges the wait. `cold`: no instance is ready, so the longer patience applies and the bell is rung each [`RING`].
    pub(super) fn judge(&self, now: Instant, cold: bool) -> Next {
        let (limit, reason) = if cold { (self.cold, Reason::ColdTimeout) } else { (self.busy, Reason::QueueTimeout) };
        let limit = limit.min(self.own);
        match now >= limit {
            true => Next::Refuse(reason),
            false if cold => Next::Until(limit.min(now + RING)),
            false => Next::Until(limit),
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
        let patience = Patience::new(start, &Policy::default(), seconds(60)); // queue 10 s, cold 30 s
        assert_eq!(patience.judge(start, false), Next::Until(seconds(10)));
        assert_eq!(patience.judge(start, true), Next::Until(seconds(1)));
        assert_eq!(patience.judge(seconds(10), false), Next::Refuse(Reason::QueueTimeout));
        assert_eq!(patience.judge(seconds(10), true), Next::Until(seconds(11)));
        assert_eq!(patience.judge(seconds(30), true), Next::Refuse(Reason::ColdTimeout));
    }

    #[test]
    fn the_requests_own_deadline_ends_the_wait_early() {
        let start = Instant::now();
        let own = start + Duration::from_millis(200);
        let patience = Patience::new(start, &Policy::default(), own);
        assert_eq!(patience.judge(start, true), Next::Until(own));
        assert_eq!(patience.judge(own, true), Next::Refuse(Reason::ColdTimeout));
        assert!(patience.own_deadline_passed(own) && !patience.own_deadline_passed(start));
    }
}
