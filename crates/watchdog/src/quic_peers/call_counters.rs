//! Counters of this instance's direct calls to one function, until the node has them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

use nearpath_types::FunctionId;
use nearpath_types::frames::{CallTally, LATENCY_BUCKETS};
use tokio::sync::Notify;

/// Counters of one callee. Atomics, because a response may end on any thread.
#[derive(Debug)]
pub(super) struct CalleeCounters {
    callee: FunctionId,
    open: AtomicU32,
    ended: AtomicU32,
    failed: AtomicU32,
    total_micros: AtomicU64,
    latency: [AtomicU32; LATENCY_BUCKETS],
    signals: Arc<CounterSignals>,
}

/// Signals for the tasks that wait for calls.
#[derive(Debug, Default)]
pub(super) struct CounterSignals {
    /// Notified when a call begins or ends.
    pub(super) changed: Notify,
    /// Notified when a call ends.
    pub(super) ended: Notify,
}

/// Count of one call: open until dropped, which is when its response body is.
#[derive(Debug)]
pub(crate) struct CountedCall {
    counters: Arc<CalleeCounters>,
    started_at: Instant,
    outcome: DirectCallOutcome,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DirectCallOutcome {
    Failed,
    Succeeded,
    /// Counted by another component.
    CountedElsewhere,
}

impl CalleeCounters {
    pub(super) fn new(callee: FunctionId, signals: Arc<CounterSignals>) -> Self {
        let latency = Default::default();
        let (open, ended, failed, total_micros) = Default::default();
        Self {
            callee,
            open,
            ended,
            failed,
            total_micros,
            latency,
            signals,
        }
    }

    /// Begins a call. Counts as failed unless a status is recorded.
    pub(super) fn begin_call(self: &Arc<Self>) -> CountedCall {
        // Relaxed, as all accesses here: the numbers guard no other data, and the node only adds
        // them up.
        self.open.fetch_add(1, Ordering::Relaxed);
        self.signals.changed.notify_one();
        CountedCall {
            counters: Arc::clone(self),
            started_at: Instant::now(),
            outcome: DirectCallOutcome::Failed,
        }
    }

    /// Returns the counts since the last time, and resets them.
    pub(super) fn take_tally(&self) -> CallTally {
        let take = |number: &AtomicU32| number.swap(0, Ordering::Relaxed);
        CallTally {
            callee: self.callee.clone(),
            // Not reset: open calls are a state, not an event.
            open: self.open.load(Ordering::Relaxed),
            ended: take(&self.ended),
            failed: take(&self.failed),
            micros: self.total_micros.swap(0, Ordering::Relaxed),
            latency: std::array::from_fn(|k| take(&self.latency[k])),
        }
    }

    /// Returns whether no call is open and all counts were taken.
    pub(super) fn is_reported(&self) -> bool {
        self.is_idle() && self.ended.load(Ordering::Relaxed) == 0
    }

    pub(super) fn is_idle(&self) -> bool {
        self.open.load(Ordering::Relaxed) == 0
    }
}

impl CountedCall {
    /// Records the status of the response.
    pub(crate) fn record_status(&mut self, status: u16) {
        // 500 and above have failed, as in the counters of shared memory (`contract/identity.md`).
        self.outcome = if status < 500 {
            DirectCallOutcome::Succeeded
        } else {
            DirectCallOutcome::Failed
        };
    }

    /// Excludes the call: another path carries it, and counts it there.
    pub(crate) fn cancel_count(mut self) {
        self.outcome = DirectCallOutcome::CountedElsewhere;
    }
}

impl Drop for CountedCall {
    fn drop(&mut self) {
        let (counters, took) = (&self.counters, self.started_at.elapsed());
        if self.outcome != DirectCallOutcome::CountedElsewhere {
            let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
            counters.total_micros.fetch_add(micros, Ordering::Relaxed);
            counters.latency[CallTally::bucket_index(took)].fetch_add(1, Ordering::Relaxed);
            counters.failed.fetch_add(
                (self.outcome == DirectCallOutcome::Failed).into(),
                Ordering::Relaxed,
            );
            counters.ended.fetch_add(1, Ordering::Relaxed);
        }
        // After the other counts: a drain that sees no open call reports them.
        counters.open.fetch_sub(1, Ordering::Relaxed);
        counters.signals.changed.notify_one();
        // Apart from `changed`, because `notify_one` wakes a single waiter and both have one.
        counters.signals.ended.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_call_is_counted_once() {
        let counters = Arc::new(CalleeCounters::new("b".parse().unwrap(), Arc::default()));
        let [mut good, mut bad, lost, other] = [(); 4].map(|()| counters.begin_call());
        let tally = counters.take_tally();
        assert_eq!((tally.open, tally.ended, tally.failed), (4, 0, 0));
        good.record_status(404);
        bad.record_status(502);
        other.cancel_count();
        drop((good, bad, lost));
        assert!(!counters.is_reported());
        let tally = counters.take_tally();
        assert_eq!(
            (
                tally.open,
                tally.ended,
                tally.failed,
                tally.latency.iter().sum::<u32>()
            ),
            (0, 3, 2, 3)
        );
        assert!(counters.is_reported());
        assert_eq!(
            counters.take_tally(),
            CallTally::for_callee("b".parse().unwrap())
        );
    }
}
