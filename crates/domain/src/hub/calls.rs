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
    /// Of a channel that is open.
    pub(super) fn open(taken: &Reading) -> Self {
        Self { ended: taken.answered, failed: taken.failed, open: taken.in_flight }
    }

    /// Of a channel that closes: what was open ended with it.
    fn closed(taken: &Reading) -> Self {
        let Self { ended, failed, open } = Self::open(taken);
        Self::default().and(Self { ended, failed, open: 0 }).and(Self { ended: open, failed: open, open: 0 })
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

/// Of channels that are no more, by the called function.
#[derive(Debug, Default)]
pub(super) struct Earlier(BTreeMap<FunctionId, Calls>);

impl Earlier {
    /// A channel is being forgotten, of which the callee's side said this last.
    pub(super) fn keep(&mut self, edge: &Key, taken: &Reading) {
        if let (Some(_), Some(callee)) = edge {
            let calls = self.0.entry(callee.clone()).or_default();
            *calls = calls.and(Calls::closed(taken));
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

    fn edge(caller: Option<&str>) -> Key {
        let id = |name: &str| name.parse().unwrap();
        (caller.map(id), Some(id("back")))
    }

    #[test]
    fn what_was_open_ends_with_its_channel() {
        let mut earlier = Earlier::default();
        let taken = Reading { answered: 5, failed: 1, in_flight: 2, ..Reading::default() };
        assert_eq!(Calls::open(&taken), Calls { ended: 5, failed: 1, open: 2 });
        earlier.keep(&edge(Some("front")), &taken);
        earlier.keep(&edge(Some("side")), &taken);
        earlier.keep(&edge(None), &taken);
        let back = "back".parse().unwrap();
        assert_eq!(earlier.of(&back), Calls { ended: 14, failed: 6, open: 0 }, "the gateway counts its own");
        earlier.retain(|_| false);
        assert!(earlier.is_empty() && earlier.of(&back) == Calls::default());
    }

    #[test]
    fn no_number_that_a_party_writes_makes_a_sum_fall() {
        let mut earlier = Earlier::default();
        let (huge, back) = (Reading { answered: u64::MAX, in_flight: u64::MAX, ..Reading::default() }, "back".parse());
        let back = back.unwrap();
        earlier.keep(&edge(Some("front")), &huge);
        assert_eq!(earlier.of(&back).ended, LARGEST);
        earlier.keep(&edge(Some("front")), &huge);
        assert_eq!(earlier.of(&back).ended, LARGEST);
    }
}
