//! When a request has taken too long, and which of its limits says so. Time is an argument.

use std::time::{Duration, Instant};

use nearpath_types::{Policy, Reason, policy};

/// The limits of one request, as points in time where they are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    deadline: Instant,
    /// Whether the deadline still bounds it: not for event streams and upgraded connections.
    total: bool,
    /// Whether the caller set the deadline (`X-Timeout`).
    own: bool,
    first_byte: Duration,
    idle: Duration,
    body_idle: Duration,
}

/// How far a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Its body is still coming; the last piece came then.
    Uploading(Instant),
    /// It was sent as a whole then; no answer yet.
    Awaiting(Instant),
    /// Its answer is coming; the last piece came then.
    Streaming(Instant),
}

impl Clock {
    /// The limits of a request that came at `start` and may bring a limit of its own, which can only shorten.
    pub(crate) fn new(start: Instant, policy: &Policy, own: Option<Duration>, body_idle: Duration) -> Self {
        let own = own.filter(|own| *own < policy.total_timeout);
        Self {
            deadline: start + own.unwrap_or(policy.total_timeout),
            total: true,
            own: own.is_some(),
            first_byte: policy.first_byte_timeout,
            idle: policy.idle_timeout,
            body_idle,
        }
    }

    /// The end of the whole request.
    pub(crate) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// What set the deadline, as an operator or caller writes it.
    pub(crate) fn total_setting(&self) -> &'static str {
        if self.own { "X-Timeout" } else { policy::TOTAL_TIMEOUT }
    }

    /// The longest silence of a response.
    pub(crate) fn idle(&self) -> Duration {
        self.idle
    }

    /// From now on only silence ends it, or the caller's own limit.
    pub(crate) fn endless(&mut self) {
        self.total = self.own;
    }

    /// Whether the whole request has taken too long at `now`.
    pub(crate) fn is_over(&self, now: Instant) -> bool {
        self.total && now >= self.deadline
    }

    /// The next moment at which it may have taken too long, and the reason then.
    pub(crate) fn next(&self, stage: Stage) -> (Instant, Reason) {
        let (at, why) = match stage {
            Stage::Uploading(last) => (last + self.body_idle, Reason::SlowRequest),
            Stage::Awaiting(since) => (since + self.first_byte, Reason::FirstByteTimeout),
            Stage::Streaming(last) => (last + self.idle, Reason::IdleTimeout),
        };
        match self.total && self.deadline <= at {
            true => (self.deadline, Reason::TotalTimeout),
            false => (at, why),
        }
    }

    /// Why it has taken too long at `now`, if it has.
    pub(crate) fn expired(&self, stage: Stage, now: Instant) -> Option<Reason> {
        let (at, why) = self.next(stage);
        (now >= at).then_some(why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn clock(start: Instant, own: Option<u64>) -> Clock {
        let seconds = Duration::from_secs;
        let policy = Policy {
            total_timeout: seconds(60),
            first_byte_timeout: seconds(20),
            idle_timeout: seconds(5),
            ..Policy::default()
        };
        Clock::new(start, &policy, own.map(seconds), seconds(30))
    }

    #[test]
    fn each_stage_has_its_limit() {
        let start = Instant::now();
        let at = |s| start + Duration::from_secs(s);
        let clock = clock(start, None);
        for (stage, limit, reason) in [
            (Stage::Uploading(at(1)), 31, Reason::SlowRequest),
            (Stage::Uploading(at(40)), 60, Reason::TotalTimeout),
            (Stage::Awaiting(at(1)), 21, Reason::FirstByteTimeout),
            (Stage::Streaming(at(50)), 55, Reason::IdleTimeout),
            (Stage::Streaming(at(58)), 60, Reason::TotalTimeout),
        ] {
            assert_eq!(clock.next(stage), (at(limit), reason), "{stage:?}");
            assert_eq!(clock.expired(stage, at(limit - 1)), None);
            assert_eq!(clock.expired(stage, at(limit)), Some(reason));
        }
    }

    #[test]
    fn an_event_stream_ends_by_silence_alone() {
        let start = Instant::now();
        let mut clock = clock(start, None);
        clock.endless();
        let late = start + Duration::from_secs(1_000);
        assert_eq!(clock.next(Stage::Streaming(late)), (late + Duration::from_secs(5), Reason::IdleTimeout));
    }

    proptest! {
        #[test]
        fn a_callers_limit_can_only_shorten(own in 0u64..200) {
            let start = Instant::now();
            let clock = clock(start, Some(own));
            prop_assert_eq!(clock.deadline(), start + Duration::from_secs(own.min(60)));
            prop_assert_eq!(clock.total_setting() == "X-Timeout", own < 60);
        }
    }
}
