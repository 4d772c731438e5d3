//! Rate of a counter that may restart, stand still or be read at uneven times.

use std::time::{Duration, Instant};

use super::limits::MAX_SAMPLE_INTERVAL;

/// Shortest time over which a rate is calculated. Over a millisecond, one request would be a rate
/// of a thousand a second.
const MIN_RATE_INTERVAL: Duration = Duration::from_millis(500);

/// Rate of one counter of one source, such as the requests for a function at one node.
///
/// A function's rate is the sum over its sources, and unknown while one of them is:
/// `rates.sum::<Option<u64>>()`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CounterRate {
    last: Option<(Instant, u64)>,
}

impl CounterRate {
    /// Reads the counter, and returns its rate since the last reading, in thousandths per second.
    ///
    /// Returns `None` where the rate is not known: at the first reading, after a restart of the
    /// counter, after more than [`MAX_SAMPLE_INTERVAL`], and where hardly any time has passed.
    pub fn read(&mut self, now: Instant, count: u64) -> Option<u64> {
        let Some((last, before)) = self.last else {
            self.last = Some((now, count));
            return None;
        };
        let interval = now.saturating_duration_since(last);
        // The older reading stays, so that the next rate covers this time, too.
        if interval < MIN_RATE_INTERVAL && count >= before {
            return None;
        }
        self.last = Some((now, count));
        // A lower count is a restart. A rate over a long gap says nothing about the load now.
        let increase = count.checked_sub(before)?;
        if interval < MIN_RATE_INTERVAL || interval > MAX_SAMPLE_INTERVAL {
            return None;
        }
        Some(rate_milli(increase, interval))
    }
}

fn rate_milli(increase: u64, interval: Duration) -> u64 {
    // A million milliseconds are a thousand seconds: thousandths per second.
    let scaled = u128::from(increase) * 1_000_000;
    u64::try_from(scaled / interval.as_millis().max(1)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rates(readings: &[(u64, u64)]) -> Vec<Option<u64>> {
        let start = Instant::now();
        let mut rate = CounterRate::default();
        let at = |ms| start + Duration::from_millis(ms);
        readings
            .iter()
            .map(|&(ms, count)| rate.read(at(ms), count))
            .collect()
    }

    #[test]
    fn a_counter_has_a_rate_between_two_readings() {
        assert_eq!(
            rates(&[(0, 100), (1_000, 150), (3_000, 151), (4_000, 151)]),
            [None, Some(50_000), Some(500), Some(0)]
        );
    }

    #[test]
    fn a_restart_is_no_rate() {
        assert_eq!(
            rates(&[(0, 100), (1_000, 20), (2_000, 25)]),
            [None, None, Some(5_000)]
        );
        assert_eq!(
            rates(&[(0, 100), (10, 20), (1_010, 25)]),
            [None, None, Some(5_000)]
        );
    }

    #[test]
    fn readings_in_short_succession_count_together() {
        assert_eq!(
            rates(&[(0, 0), (1, 1), (2, 2), (1_000, 10)]),
            [None, None, None, Some(10_000)]
        );
    }

    #[test]
    fn a_gap_and_a_clock_that_steps_back_are_no_rate() {
        assert_eq!(
            rates(&[(0, 0), (60_000, 100), (61_000, 101)]),
            [None, None, Some(1_000)]
        );
        assert_eq!(
            rates(&[(5_000, 0), (1_000, 9), (6_000, 10)]),
            [None, None, Some(10_000)]
        );
    }

    proptest! {
        #[test]
        fn no_reading_overflows(readings in prop::collection::vec((any::<u32>(), any::<u64>()), 0..50)) {
            let readings: Vec<_> = readings.iter().map(|&(ms, count)| (u64::from(ms), count)).collect();
            rates(&readings);
        }
    }
}
