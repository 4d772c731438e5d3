//! Deadlines of a request, and the limit behind each. Time is an argument.

use std::time::{Duration, Instant};

use nearpath_types::{FunctionPolicy, Reason, policy};

/// Deadlines of one request: points in time where known, otherwise durations.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestDeadlines {
    deadline: Instant,
    /// The deadline applies: not for event streams and upgraded connections.
    has_deadline: bool,
    origin: DeadlineOrigin,
    first_byte_timeout: Duration,
    idle_timeout: Duration,
    body_idle_timeout: Duration,
}

/// Setting behind the deadline of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DeadlineOrigin {
    /// The function's policy.
    Policy,
    /// `X-Timeout` of the caller.
    Caller,
    /// `exec_timeout` of the function, where no watchdog enforces it.
    ExecTimeout,
}

/// Stage of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestStage {
    /// The gateway waits for more of the body.
    Uploading {
        /// Start of the wait.
        since: Instant,
        /// Time left to a caller with a minimum rate.
        rate_limit: Option<Duration>,
    },
    /// The function has had what has come of the request since this time; no response yet.
    Awaiting(Instant),
    /// The response is arriving; time of its last part.
    Streaming(Instant),
}

impl RequestDeadlines {
    /// Creates the deadlines of a request that arrived at `start`. A limit of the caller can only
    /// shorten the total timeout.
    pub(crate) fn new(
        start: Instant,
        policy: &FunctionPolicy,
        caller_timeout: Option<Duration>,
        body_idle_timeout: Duration,
    ) -> Self {
        // A longer wish is ignored: the policy protects the function, and its owner sets it.
        let caller_timeout = caller_timeout.filter(|own| *own < policy.total_timeout);
        Self {
            deadline: start + caller_timeout.unwrap_or(policy.total_timeout),
            has_deadline: true,
            origin: match caller_timeout {
                Some(_) => DeadlineOrigin::Caller,
                None => DeadlineOrigin::Policy,
            },
            first_byte_timeout: policy.first_byte_timeout,
            idle_timeout: policy.idle_timeout,
            body_idle_timeout,
        }
    }

    /// Returns the deadline of the whole request.
    pub(crate) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Returns the setting behind the deadline, as operators or callers write it.
    pub(crate) fn deadline_setting(&self) -> &'static str {
        match self.origin {
            DeadlineOrigin::Caller => "X-Timeout",
            DeadlineOrigin::Policy => policy::TOTAL_TIMEOUT,
            DeadlineOrigin::ExecTimeout => "exec_timeout",
        }
    }

    /// Brings the deadline forward to the end of the function's own limit.
    pub(crate) fn shorten_to_exec_timeout(&mut self, at: Instant) {
        if at < self.deadline {
            (self.deadline, self.origin) = (at, DeadlineOrigin::ExecTimeout);
        }
    }

    /// Returns the maximum silence of a response.
    pub(crate) fn idle_timeout(&self) -> Duration {
        self.idle_timeout
    }

    /// Lifts the total timeout: only silence or the caller's limit ends the request from now on.
    pub(crate) fn lift_total_timeout(&mut self) {
        self.has_deadline = self.origin == DeadlineOrigin::Caller;
    }

    /// Returns whether the whole request is overdue at `now`.
    pub(crate) fn is_over(&self, now: Instant) -> bool {
        self.has_deadline && now >= self.deadline
    }

    /// Returns the next deadline in a stage, and the reason when it passes.
    pub(crate) fn next_deadline(&self, stage: RequestStage) -> (Instant, Reason) {
        let (at, why) = match stage {
            RequestStage::Uploading { since, rate_limit } => {
                let idle = self.body_idle_timeout;
                (
                    since + rate_limit.unwrap_or(idle).min(idle),
                    Reason::SlowRequest,
                )
            }
            RequestStage::Awaiting(since) => {
                (since + self.first_byte_timeout, Reason::FirstByteTimeout)
            }
            RequestStage::Streaming(last) => (last + self.idle_timeout, Reason::IdleTimeout),
        };
        match self.has_deadline && self.deadline <= at {
            true => (self.deadline, self.deadline_reason()),
            false => (at, why),
        }
    }

    /// Returns the reason for the end of an overdue request.
    pub(crate) fn deadline_reason(&self) -> Reason {
        match self.origin {
            DeadlineOrigin::ExecTimeout => Reason::ExecTimeout,
            DeadlineOrigin::Caller | DeadlineOrigin::Policy => Reason::TotalTimeout,
        }
    }

    /// Returns the reason if a deadline has passed at `now`.
    pub(crate) fn expired_reason(&self, stage: RequestStage, now: Instant) -> Option<Reason> {
        let (at, why) = self.next_deadline(stage);
        (now >= at).then_some(why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn deadlines_with(start: Instant, own: Option<u64>) -> RequestDeadlines {
        let seconds = Duration::from_secs;
        let policy = FunctionPolicy {
            total_timeout: seconds(60),
            first_byte_timeout: seconds(20),
            idle_timeout: seconds(5),
            ..FunctionPolicy::default()
        };
        RequestDeadlines::new(start, &policy, own.map(seconds), seconds(30))
    }

    #[test]
    fn each_stage_has_its_limit() {
        let start = Instant::now();
        let at = |s| start + Duration::from_secs(s);
        let deadlines = deadlines_with(start, None);
        let uploading = |since, rate_limit: Option<u64>| RequestStage::Uploading {
            since: at(since),
            rate_limit: rate_limit.map(Duration::from_secs),
        };
        for (stage, limit, reason) in [
            (uploading(1, None), 31, Reason::SlowRequest),
            (uploading(1, Some(3)), 4, Reason::SlowRequest),
            (uploading(1, Some(40)), 31, Reason::SlowRequest),
            (uploading(40, None), 60, Reason::TotalTimeout),
            (RequestStage::Awaiting(at(1)), 21, Reason::FirstByteTimeout),
            (RequestStage::Streaming(at(50)), 55, Reason::IdleTimeout),
            (RequestStage::Streaming(at(58)), 60, Reason::TotalTimeout),
        ] {
            assert_eq!(
                deadlines.next_deadline(stage),
                (at(limit), reason),
                "{stage:?}"
            );
            assert_eq!(deadlines.expired_reason(stage, at(limit - 1)), None);
            assert_eq!(deadlines.expired_reason(stage, at(limit)), Some(reason));
        }
    }

    #[test]
    fn an_event_stream_ends_by_the_idle_timeout_alone() {
        let start = Instant::now();
        let mut deadlines = deadlines_with(start, None);
        deadlines.lift_total_timeout();
        let late = start + Duration::from_secs(1_000);
        assert_eq!(
            deadlines.next_deadline(RequestStage::Streaming(late)),
            (late + Duration::from_secs(5), Reason::IdleTimeout)
        );
    }

    proptest! {
        #[test]
        fn a_callers_limit_can_only_shorten(own in 0u64..200) {
            let start = Instant::now();
            let deadlines = deadlines_with(start, Some(own));
            prop_assert_eq!(deadlines.deadline(), start + Duration::from_secs(own.min(60)));
            prop_assert_eq!(deadlines.deadline_setting() == "X-Timeout", own < 60);
        }
    }
}
