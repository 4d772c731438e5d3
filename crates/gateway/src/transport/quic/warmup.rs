//! Which lines are opened before anybody calls on them. Pure: ticks are an argument.
//!
//! A thread that has seen calls for a function lately opens a line to an instance of it that has become ready, so that the next call finds one. It
//! opens no more than the function had calls lately, and not more than a few at a time: what is not opened ahead, the first flight covers.

/// After so many ticks (a quarter of a second each) a call counts half.
const HALF_LIFE_TICKS: u32 = 4 * 15;
/// Lines that one function may have ahead of its calls, in one thread.
const MAX_WARM_CONNECTIONS: usize = 16;
/// A call counts so much, in whole numbers.
const CALL_WEIGHT: u32 = 1 << 10;
/// Calls beyond this many make no difference.
const MAX_COUNTED_CALLS: u32 = 1 << 10;

/// How much a thread calls a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CallRate {
    weight: u32,
    updated_at: u32,
}

impl CallRate {
    /// A first call.
    pub(super) fn first_call(now: u32) -> Self {
        Self {
            weight: CALL_WEIGHT,
            updated_at: now,
        }
    }

    /// One more.
    pub(super) fn note_call(&mut self, now: u32) {
        self.weight = (self.weight_at(now) + CALL_WEIGHT).min(MAX_COUNTED_CALLS * CALL_WEIGHT);
        self.updated_at = self.updated_at.max(now);
    }

    fn weight_at(self, now: u32) -> u32 {
        let halvings = now.saturating_sub(self.updated_at) / HALF_LIFE_TICKS;
        self.weight.checked_shr(halvings).unwrap_or(0)
    }

    /// Calls of late; 0: it is not in use any more.
    pub(super) fn recent_calls(self, now: u32) -> usize {
        (self.weight_at(now) / CALL_WEIGHT) as usize
    }
}

/// How many of the instances without a line get one. `lines`: instances that have one; `bare`: those that have not.
pub(super) fn connections_wanted(calls: usize, connected: usize, unconnected: usize) -> usize {
    calls
        .min(MAX_WARM_CONNECTIONS)
        .saturating_sub(connected)
        .min(unconnected)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_function_without_recent_calls_gets_no_connections() {
        let mut rate = CallRate::first_call(10);
        (0..9).for_each(|_| rate.note_call(10));
        let calls = |ticks| rate.recent_calls(10 + ticks);
        assert_eq!(
            [0, HALF_LIFE_TICKS, 2 * HALF_LIFE_TICKS, 4 * HALF_LIFE_TICKS].map(calls),
            [10, 5, 2, 0]
        );
        assert_eq!(
            (rate.recent_calls(u32::MAX), rate.recent_calls(0)),
            (0, 10),
            "whatever the clock says"
        );
    }

    proptest! {
        #[test]
        fn lines_ahead_are_bounded_by_use_by_instances_and_by_the_budget(calls in 0usize..2000, lines in 0usize..50, bare in 0usize..50) {
            let wanted = connections_wanted(calls, lines, bare);
            prop_assert!(wanted <= bare && (wanted == 0 || wanted + lines <= calls.min(MAX_WARM_CONNECTIONS)));
            prop_assert!(calls > lines || wanted == 0);
        }

        #[test]
        fn use_never_grows_by_itself(passes in proptest::collection::vec((0u32..500, any::<bool>()), 1..100)) {
            let (mut now, mut rate) = (0, CallRate::first_call(0));
            for (pass, call) in passes {
                let before = rate.recent_calls(now);
                now += pass;
                prop_assert!(rate.recent_calls(now) <= before);
                if call {
                    let before = rate.recent_calls(now);
                    rate.note_call(now);
                    prop_assert!(rate.recent_calls(now) >= before && rate.recent_calls(now) <= MAX_COUNTED_CALLS as usize);
                }
            }
        }
    }
}
