//! Invocations of functions by other functions, as counted by the callee.
//!
//! Channels of the gateway are excluded, because the gateway counts its own requests. Counts of a
//! closed channel are kept: the end of an instance decreases no sum.

use std::collections::BTreeMap;

use nearpath_shm::counters::CounterReading;
use nearpath_types::FunctionId;

/// Maximum value of a counter: the largest integer range of an IEEE 754 double, which Prometheus
/// uses.
pub const MAX_COUNTER: u64 = (1 << 53) - 1;

/// Key of an edge.
pub(super) type EdgeKey = (Option<FunctionId>, Option<FunctionId>);

/// Calls that one function received from other functions through shared memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CallCounts {
    /// Calls that ended, including failed ones.
    pub ended: u64,
    /// Ended calls that failed: status 500 or above, cancelled by the caller, or lost with the
    /// instance.
    pub failed: u64,
    /// Calls that have not ended.
    pub open: u64,
}

impl CallCounts {
    /// Converts the counts of a closing channel: open calls end as failed.
    fn into_closed(self) -> Self {
        // Open calls of a closed channel have no answer any more: their callers got an error.
        Self { open: 0, ..self }.saturating_add(Self {
            ended: self.open,
            failed: self.open,
            open: 0,
        })
    }

    /// Adds two counts, saturating.
    #[must_use]
    pub fn saturating_add(self, other: Self) -> Self {
        let sum = |one: u64, two: u64| one.saturating_add(two).min(MAX_COUNTER);
        Self {
            ended: sum(self.ended, other.ended),
            failed: sum(self.failed, other.failed),
            open: sum(self.open, other.open),
        }
    }
}

/// Reads one channel so that neither succeeded nor failed calls ever decrease. The callee first
/// writes ended, then failed calls: a read in between must not show a failing call as succeeded
/// first.
#[derive(Debug, Default)]
pub(super) struct MonotonicReader {
    max_succeeded: u64,
}

impl MonotonicReader {
    pub(super) fn read_counts(&mut self, taken: &CounterReading) -> CallCounts {
        let ended = taken.answered;
        // The callee writes `answered` before `failed`: a failing call looks succeeded for a
        // moment.
        self.max_succeeded = self.max_succeeded.max(ended.saturating_sub(taken.failed));
        CallCounts {
            ended,
            failed: ended - self.max_succeeded,
            open: taken.in_flight,
        }
    }
}

/// Counts of closed channels, by callee.
#[derive(Debug, Default)]
pub(super) struct PastCalls(BTreeMap<FunctionId, CallCounts>);

impl PastCalls {
    /// Adds the last counts of a channel that is being removed.
    pub(super) fn add_closed(&mut self, edge: &EdgeKey, last: CallCounts) {
        if let (Some(_), Some(callee)) = edge {
            let calls = self.0.entry(callee.clone()).or_default();
            *calls = calls.saturating_add(last.into_closed());
        }
    }

    pub(super) fn counts_of(&self, callee: &FunctionId) -> CallCounts {
        self.0.get(callee).copied().unwrap_or_default()
    }

    /// Forgets functions that no longer exist.
    pub(super) fn retain(&mut self, known: impl Fn(&FunctionId) -> bool) {
        self.0.retain(|callee, _| known(callee));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn edge_key(caller: Option<&str>) -> EdgeKey {
        let id = |name: &str| name.parse().unwrap();
        (caller.map(id), Some(id("back")))
    }

    #[test]
    fn open_calls_end_with_their_channel() {
        let mut earlier = PastCalls::default();
        let last = MonotonicReader::default().read_counts(&CounterReading {
            answered: 5,
            failed: 1,
            in_flight: 2,
            ..CounterReading::default()
        });
        assert_eq!(
            last,
            CallCounts {
                ended: 5,
                failed: 1,
                open: 2
            }
        );
        earlier.add_closed(&edge_key(Some("front")), last);
        earlier.add_closed(&edge_key(Some("side")), last);
        earlier.add_closed(&edge_key(None), last);
        let back = "back".parse().unwrap();
        assert_eq!(
            earlier.counts_of(&back),
            CallCounts {
                ended: 14,
                failed: 6,
                open: 0
            },
            "the gateway counts its own"
        );
        earlier.retain(|_| false);
        assert!(earlier.is_empty() && earlier.counts_of(&back) == CallCounts::default());
    }

    #[test]
    fn no_number_that_an_endpoint_writes_decreases_a_sum() {
        let mut earlier = PastCalls::default();
        let (huge, back) = (
            CallCounts {
                ended: u64::MAX,
                failed: u64::MAX,
                open: u64::MAX,
            },
            "back".parse().unwrap(),
        );
        earlier.add_closed(&edge_key(Some("front")), huge);
        assert_eq!(earlier.counts_of(&back).ended, MAX_COUNTER);
        earlier.add_closed(&edge_key(Some("front")), huge);
        assert_eq!(earlier.counts_of(&back).ended, MAX_COUNTER);
    }

    #[test]
    fn a_read_between_two_counter_writes_counts_no_call_twice() {
        let mut steady = MonotonicReader::default();
        let mut look = |answered, failed| {
            let calls = steady.read_counts(&CounterReading {
                answered,
                failed,
                ..CounterReading::default()
            });
            (calls.ended, calls.failed)
        };
        assert_eq!(look(5, 1), (5, 1));
        assert_eq!(
            look(5, 2),
            (5, 1),
            "the sixth, which failed, has ended after the look at how many ended"
        );
        assert_eq!(look(6, 2), (6, 2));
        assert_eq!(
            look(7, 2),
            (7, 2),
            "the seventh fails, which is not written yet"
        );
        assert_eq!(look(7, 3), (7, 2), "five were shown as well, and stay so");
        assert_eq!(look(8, 3), (8, 3));
    }

    proptest! {
        #[test]
        fn succeeded_and_failed_counts_never_decrease(steps in proptest::collection::vec((0u64..3, 0u64..5), 1..40)) {
            let (mut steady, mut taken, mut before) = (MonotonicReader::default(), CounterReading::default(), CallCounts::default());
            for (more, failed) in steps {
                taken = CounterReading { answered: taken.answered + more, failed: taken.failed + failed, ..taken };
                let now = steady.read_counts(&taken);
                prop_assert!(now.ended == taken.answered && now.failed >= before.failed && now.failed <= now.ended);
                prop_assert!(now.ended - now.failed >= before.ended - before.failed);
                before = now;
            }
        }
    }
}
