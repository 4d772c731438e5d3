//! How often functions were called by other functions, as the called one counted: its number of invocations, beside those that the
//! gateway sees.
//!
//! The gateway's own channels are not in it, for the gateway counts its requests itself, whichever way they go on. What a channel
//! counted is kept when it closes: an instance that ends takes nothing from the sum.

use std::collections::BTreeMap;

use nearpath_shm::counters::Reading;
use nearpath_types::FunctionId;

use super::edges::{Key, LARGEST};

/// Calls that one function received from others through memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Calls {
    /// Those that ended, the failed ones too.
    pub ended: u64,
    /// Of these: answered with 500 or above, given up by the caller, or lost with the instance.
    pub failed: u64,
    /// Those that have not ended.
    pub open: u64,
}

impl Calls {
    /// Of a channel that closes: what was open ended with it.
    fn closed(self) -> Self {
        Self { open: 0, ..self }.and(Self { ended: self.open, failed: self.open, open: 0 })
    }

    /// Both together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let sum = |one: u64, two: u64| one.saturating_add(two).min(LARGEST);
        Self {
            ended: sum(self.ended, other.ended),
            failed: sum(self.failed, other.failed),
            open: sum(self.open, other.open),
        }
    }
}

/// Reads one channel so that neither its failed calls nor the others ever become fewer. The callee writes how many ended, then how many
/// of these failed; a look between the two must not show a call as well that fails a moment later.
#[derive(Debug, Default)]
pub(super) struct Steady {
    well: u64,
}

impl Steady {
    pub(super) fn calls(&mut self, taken: &Reading) -> Calls {
        let ended = taken.answered;
        self.well = self.well.max(ended.saturating_sub(taken.failed));
        Calls { ended, failed: ended - self.well, open: taken.in_flight }
    }
}

/// Of channels that are no more, by the called function.
#[derive(Debug, Default)]
pub(super) struct Earlier(BTreeMap<FunctionId, Calls>);

impl Earlier {
    /// A channel is being forgotten, of which the callee's side said this last.
    pub(super) fn keep(&mut self, edge: &Key, last: Calls) {
        if let (Some(_), Some(callee)) = edge {
            let calls = self.0.entry(callee.clone()).or_default();
            *calls = calls.and(last.closed());
        }
    }

    pub(super) fn of(&self, callee: &FunctionId) -> Calls {
        self.0.get(callee).copied().unwrap_or_default()
    }

    /// Forgets functions that there are no more.
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

    fn edge(caller: Option<&str>) -> Key {
        let id = |name: &str| name.parse().unwrap();
        (caller.map(id), Some(id("back")))
    }

    #[test]
    fn what_was_open_ends_with_its_channel() {
        let mut earlier = Earlier::default();
        let last = Steady::default().calls(&Reading { answered: 5, failed: 1, in_flight: 2, ..Reading::default() });
        assert_eq!(last, Calls { ended: 5, failed: 1, open: 2 });
        earlier.keep(&edge(Some("front")), last);
        earlier.keep(&edge(Some("side")), last);
        earlier.keep(&edge(None), last);
        let back = "back".parse().unwrap();
        assert_eq!(earlier.of(&back), Calls { ended: 14, failed: 6, open: 0 }, "the gateway counts its own");
        earlier.retain(|_| false);
        assert!(earlier.is_empty() && earlier.of(&back) == Calls::default());
    }

    #[test]
    fn no_number_that_a_party_writes_makes_a_sum_fall() {
        let mut earlier = Earlier::default();
        let (huge, back) = (Calls { ended: u64::MAX, failed: u64::MAX, open: u64::MAX }, "back".parse().unwrap());
        earlier.keep(&edge(Some("front")), huge);
        assert_eq!(earlier.of(&back).ended, LARGEST);
        earlier.keep(&edge(Some("front")), huge);
        assert_eq!(earlier.of(&back).ended, LARGEST);
    }

    #[test]
    fn a_look_between_two_counters_shows_no_call_twice() {
        let mut steady = Steady::default();
        let mut look = |answered, failed| {
            let calls = steady.calls(&Reading { answered, failed, ..Reading::default() });
            (calls.ended, calls.failed)
        };
        assert_eq!(look(5, 1), (5, 1));
        assert_eq!(look(5, 2), (5, 1), "the sixth, which failed, has ended after the look at how many ended");
        assert_eq!(look(6, 2), (6, 2));
        assert_eq!(look(7, 2), (7, 2), "the seventh fails, which is not written yet");
        assert_eq!(look(7, 3), (7, 2), "five were shown as well, and stay so");
        assert_eq!(look(8, 3), (8, 3));
    }

    proptest! {
        #[test]
        fn neither_part_ever_falls(steps in proptest::collection::vec((0u64..3, 0u64..5), 1..40)) {
            let (mut steady, mut taken, mut before) = (Steady::default(), Reading::default(), Calls::default());
            for (more, failed) in steps {
                taken = Reading { answered: taken.answered + more, failed: taken.failed + failed, ..taken };
                let now = steady.calls(&taken);
                prop_assert!(now.ended == taken.answered && now.failed >= before.failed && now.failed <= now.ended);
                prop_assert!(now.ended - now.failed >= before.ended - before.failed);
                before = now;
            }
        }
    }
}
