//! Minimum rate of a caller that sends a request body or reads a response. Time is an argument.

use std::time::Duration;

/// Minimum rate of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MinRate {
    /// Bytes per second; 0: no minimum.
    pub bytes_per_second: u64,
    /// Time that a transfer may fall behind the rate.
    pub grace: Duration,
}

/// Time that a caller may still let the gateway wait. Waiting uses it up, and each byte adds the
/// time that it may take at the minimum rate, up to the grace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RateAllowance {
    min: MinRate,
    left: Duration,
}

impl RateAllowance {
    /// Starts a transfer with the whole grace.
    pub(crate) fn new(min: MinRate) -> Self {
        Self {
            min,
            left: min.grace,
        }
    }

    /// Returns the time after which a caller that transfers nothing is too slow; `None`: never.
    pub(crate) fn time_left(&self) -> Option<Duration> {
        (self.min.bytes_per_second > 0).then_some(self.left)
    }

    /// Notes that the gateway has waited for the caller.
    pub(crate) fn note_wait(&mut self, waited: Duration) {
        self.left = self.left.saturating_sub(waited);
    }

    /// Notes transferred bytes.
    pub(crate) fn note_bytes(&mut self, bytes: usize) {
        let Some(nanos) = (bytes as u64)
            .saturating_mul(1_000_000_000)
            .checked_div(self.min.bytes_per_second)
        else {
            return; // no minimum
        };
        let earned = Duration::from_nanos(nanos);
        self.left = self.left.saturating_add(earned).min(self.min.grace);
    }

    /// Returns whether the caller is too slow.
    pub(crate) fn is_used_up(&self) -> bool {
        self.time_left().is_some_and(|left| left.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn allowance(bytes_per_second: u64) -> RateAllowance {
        RateAllowance::new(MinRate {
            bytes_per_second,
            grace: Duration::from_secs(10),
        })
    }

    #[test]
    fn a_silent_caller_has_the_grace_and_no_more() {
        let mut silent = allowance(100);
        silent.note_wait(Duration::from_secs(9));
        assert_eq!(silent.time_left(), Some(Duration::from_secs(1)));
        silent.note_wait(Duration::from_secs(1));
        assert!(silent.is_used_up());
    }

    #[test]
    fn early_bytes_buy_no_time_beyond_the_grace() {
        let mut early = allowance(100);
        early.note_bytes(1 << 30);
        assert_eq!(early.time_left(), Some(Duration::from_secs(10)));
    }

    #[test]
    fn a_rate_of_zero_is_no_minimum() {
        let mut unlimited = allowance(0);
        unlimited.note_wait(Duration::MAX);
        unlimited.note_bytes(1);
        assert!(unlimited.time_left().is_none() && !unlimited.is_used_up());
    }

    proptest! {
        #[test]
        fn only_callers_below_the_rate_are_too_slow(bytes in 0usize..200) {
            let mut caller = allowance(100);
            for _ in 0..1_000 {
                caller.note_wait(Duration::from_secs(1));
                if caller.is_used_up() {
                    break;
                }
                caller.note_bytes(bytes);
            }
            prop_assert_eq!(caller.is_used_up(), bytes < 100);
        }
    }
}
