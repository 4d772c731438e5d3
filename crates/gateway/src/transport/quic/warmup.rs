//! Choice of the connections to open ahead of calls. Pure: ticks are an argument.
//!
//! A thread with recent calls of a function opens a connection to each instance that becomes
//! ready, so that the next call finds one. It opens no more than the function had recent calls,
//! and only a few at a time. The first flight covers the rest.

/// Ticks of 250 ms after which a call counts half: 15 seconds.
const HALF_LIFE_TICKS: u32 = 4 * 15;
/// Maximum connections ahead of calls, per function and thread.
const MAX_WARM_CONNECTIONS: usize = 16;
/// Weight of one call, as a fixed-point number.
const CALL_WEIGHT: u32 = 1 << 10;
/// Maximum calls that are counted.
const MAX_COUNTED_CALLS: u32 = 1 << 10;

/// Recent calls of a function by one thread, with exponential decay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CallRate {
    weight: u32,
    updated_at: u32,
}

impl CallRate {
    /// Starts with a first call.
    pub(super) fn first_call(now: u32) -> Self {
        Self {
            weight: CALL_WEIGHT,
            updated_at: now,
        }
    }

    /// Notes a call.
    pub(super) fn note_call(&mut self, now: u32) {
        self.weight = (self.weight_at(now) + CALL_WEIGHT).min(MAX_COUNTED_CALLS * CALL_WEIGHT);
        // The time never goes back, or old calls would gain weight.
        self.updated_at = self.updated_at.max(now);
    }

    fn weight_at(self, now: u32) -> u32 {
        let halvings = now.saturating_sub(self.updated_at) / HALF_LIFE_TICKS;
        // A shift by 32 bits or more is an overflow; so many halvings leave nothing.
        self.weight.checked_shr(halvings).unwrap_or(0)
    }

    /// Returns the recent calls; 0: not in use any more.
    pub(super) fn recent_calls(self, now: u32) -> usize {
        (self.weight_at(now) / CALL_WEIGHT) as usize
    }
}

/// Returns how many of the `unconnected` instances get a connection, given the number of
/// `connected` ones.
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
        fn connections_ahead_are_bounded_by_calls_instances_and_budget(calls in 0usize..2000, connected in 0usize..50, unconnected in 0usize..50) {
            let wanted = connections_wanted(calls, connected, unconnected);
            prop_assert!(wanted <= unconnected && (wanted == 0 || wanted + connected <= calls.min(MAX_WARM_CONNECTIONS)));
            prop_assert!(calls > connected || wanted == 0);
        }

        #[test]
        fn a_call_rate_never_grows_without_calls(passes in proptest::collection::vec((0u32..500, any::<bool>()), 1..100)) {
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
