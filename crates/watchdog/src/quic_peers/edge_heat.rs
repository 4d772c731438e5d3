//! The decision whether an edge to another node goes directly: pure, from the number of its calls.
//!
//! A direct connection costs about as much as it saves on some tens of calls. Below the threshold,
//! calls over the nodes' connections cost less.

use std::time::{Duration, Instant};

/// Period in which calls are counted.
const COUNT_PERIOD: Duration = Duration::from_secs(60);
/// Calls in a period above which the edge goes directly.
const HOT_CALLS: u32 = 16;
/// Calls in a period below which it goes by the nodes again. Half of the other, so that an edge at
/// the threshold does not change each minute.
const COLD_CALLS: u32 = 8;

/// Counter of one edge's calls.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct EdgeHeat {
    period_start: Option<Instant>,
    calls: u32,
    is_hot: bool,
}

impl EdgeHeat {
    /// Counts a call. Returns whether the edge goes directly.
    pub(super) fn record_call(&mut self, now: Instant) -> bool {
        self.end_period(now);
        self.calls = self.calls.saturating_add(1);
        self.is_hot |= self.calls > HOT_CALLS;
        self.is_hot
    }

    /// Returns whether the edge went directly at its last call.
    pub(super) fn is_hot(&self) -> bool {
        self.is_hot
    }

    fn end_period(&mut self, now: Instant) {
        let start = *self.period_start.get_or_insert(now);
        let age = now.saturating_duration_since(start);
        if age < COUNT_PERIOD {
            return;
        }
        // After two periods, at least one had no call at all.
        self.is_hot &= age < 2 * COUNT_PERIOD && self.calls >= COLD_CALLS;
        (self.period_start, self.calls) = (Some(now), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Counts calls at this interval. Returns whether the last one went directly.
    fn call_every(heat: &mut EdgeHeat, now: &mut Instant, interval: Duration, calls: u32) -> bool {
        let mut is_hot = heat.is_hot();
        for _ in 0..calls {
            *now += interval;
            is_hot = heat.record_call(*now);
        }
        is_hot
    }

    proptest! {
        #[test]
        fn a_hot_edge_had_a_minute_with_more_than_16_calls(gaps in prop::collection::vec(0u64..20_000, 1..300)) {
            let (mut heat, mut now, mut times) = (EdgeHeat::default(), Instant::now(), Vec::new());
            for gap in gaps {
                now += Duration::from_millis(gap);
                times.push(now);
                let was_hot = heat.is_hot();
                if heat.record_call(now) && !was_hot {
                    let within = times.iter().filter(|at| now - **at < COUNT_PERIOD).count();
                    prop_assert!(within > HOT_CALLS as usize);
                }
            }
        }

        #[test]
        fn enough_calls_make_any_edge_hot(gaps in prop::collection::vec(0u64..100_000, 0..50)) {
            let (mut heat, mut now) = (EdgeHeat::default(), Instant::now());
            for gap in gaps {
                now += Duration::from_millis(gap);
                heat.record_call(now);
            }
            // Twice the threshold in a minute: one of two periods has more than 16.
            prop_assert!(call_every(&mut heat, &mut now, Duration::from_millis(1_700), 35));
        }
    }

    #[test]
    fn the_seventeenth_call_of_a_minute_goes_directly() {
        let (mut heat, mut now) = (EdgeHeat::default(), Instant::now());
        let second = Duration::from_secs(1);
        assert!(!call_every(&mut heat, &mut now, second, HOT_CALLS));
        assert!(call_every(&mut heat, &mut now, second, 1));
    }

    #[test]
    fn an_edge_between_the_thresholds_keeps_its_way() {
        let six_seconds = Duration::from_secs(6);
        let (mut heat, mut now) = (EdgeHeat::default(), Instant::now());
        assert!(!call_every(&mut heat, &mut now, six_seconds, 50));
        call_every(&mut heat, &mut now, Duration::from_secs(1), 40);
        assert!(call_every(&mut heat, &mut now, six_seconds, 50));
    }

    #[test]
    fn a_quiet_minute_ends_direct_calls() {
        for interval in [10, 200] {
            let (mut heat, mut now) = (EdgeHeat::default(), Instant::now());
            assert!(call_every(&mut heat, &mut now, Duration::from_secs(1), 20));
            let slow = Duration::from_secs(interval);
            assert!(!call_every(&mut heat, &mut now, slow, 15), "{interval} s");
        }
    }
}
