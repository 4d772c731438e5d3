//! Which lines are opened before anybody calls on them. Pure: ticks are an argument.
//!
//! A thread that has seen calls for a function lately opens a line to an instance of it that has become ready, so that the next call finds one. It
//! opens no more than the function had calls lately, and not more than a few at a time: what is not opened ahead, the first flight covers.

/// After so many ticks (a quarter of a second each) a call counts half.
const HALF_LIFE: u32 = 4 * 15;
/// Lines that one function may have ahead of its calls, in one thread.
const MOST: usize = 16;
/// A call counts so much, in whole numbers.
const CALL: u32 = 1 << 10;
/// Calls beyond this many make no difference.
const MOST_CALLS: u32 = 1 << 10;

/// How much a thread calls a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Use {
    weight: u32,
    at: u32,
}

impl Use {
    /// A first call.
    pub(super) fn begin(now: u32) -> Self {
        Self { weight: CALL, at: now }
    }

    /// One more.
    pub(super) fn called(&mut self, now: u32) {
        self.weight = (self.weight_at(now) + CALL).min(MOST_CALLS * CALL);
        self.at = self.at.max(now);
    }

    fn weight_at(self, now: u32) -> u32 {
        let halvings = now.saturating_sub(self.at) / HALF_LIFE;
        self.weight.checked_shr(halvings).unwrap_or(0)
    }

    /// Calls of late; 0: it is not in use any more.
    pub(super) fn calls(self, now: u32) -> usize {
        (self.weight_at(now) / CALL) as usize
    }
}

/// How many of the instances without a line get one. `lines`: instances that have one; `bare`: those that have not.
pub(super) fn wanted(calls: usize, lines: usize, bare: usize) -> usize {
    calls.min(MOST).saturating_sub(lines).min(bare)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_function_that_is_not_called_any_more_gets_no_lines() {
        let mut used = Use::begin(10);
        (0..9).for_each(|_| used.called(10));
        let calls = |ticks| used.calls(10 + ticks);
        assert_eq!([0, HALF_LIFE, 2 * HALF_LIFE, 4 * HALF_LIFE].map(calls), [10, 5, 2, 0]);
        assert_eq!((used.calls(u32::MAX), used.calls(0)), (0, 10), "whatever the clock says");
    }

    proptest! {
        #[test]
        fn lines_ahead_are_bounded_by_use_by_instances_and_by_the_budget(calls in 0usize..2000, lines in 0usize..50, bare in 0usize..50) {
            let wanted = wanted(calls, lines, bare);
            prop_assert!(wanted <= bare && (wanted == 0 || wanted + lines <= calls.min(MOST)));
            prop_assert!(calls > lines || wanted == 0);
        }

        #[test]
        fn use_never_grows_by_itself(passes in proptest::collection::vec((0u32..500, any::<bool>()), 1..100)) {
            let (mut now, mut used) = (0, Use::begin(0));
            for (pass, call) in passes {
                let before = used.calls(now);
                now += pass;
                prop_assert!(used.calls(now) <= before);
                if call {
                    let before = used.calls(now);
                    used.called(now);
                    prop_assert!(used.calls(now) >= before && used.calls(now) <= MOST_CALLS as usize);
                }
            }
        }
    }
}
