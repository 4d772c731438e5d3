//! Minimum rate of a caller that sends a request body or reads a response. Time is an argument.

use std::time::Duration;

/// Minimum rate of a caller that holds a place for which others wait. Slower than every access
/// network in common use (128 kbit/s), and much more than a caller that holds places on purpose
/// would spend on each.
const CONTENDED_BYTES_PER_SECOND: u64 = 16 * 1024;
/// Time that such a caller may fall behind: some retransmissions of TCP (RFC 6298 section 2).
const CONTENDED_GRACE: Duration = Duration::from_secs(2);

/// Minimum rate of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MinRate {
    /// Bytes per second; 0: no minimum.
    pub bytes_per_second: u64,
    /// Time that a transfer may fall behind the rate.
    pub grace: Duration,
}

impl MinRate {
    /// Returns the rate of a caller that holds a place while others wait for one; no minimum if
    /// there is none otherwise.
    pub(crate) fn while_contended(self) -> Self {
        Self {
            bytes_per_second: match self.bytes_per_second {
                0 => 0,
                rate => rate.max(CONTENDED_BYTES_PER_SECOND),
            },
            grace: self.grace.min(CONTENDED_GRACE),
        }
    }
}

/// Time that a caller may still let the gateway wait. Waiting uses it up, and each byte adds the
/// time that it may take at the minimum rate, up to the grace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RateAllowance {
    min: MinRate,
    /// Time by which the transfer is behind the rate.
    behind: Duration,
}

impl RateAllowance {
    /// Starts a transfer with the whole grace.
    pub(crate) fn new(min: MinRate) -> Self {
        Self {
            min,
            behind: Duration::ZERO,
        }
    }

    /// Returns the time after which a caller that transfers nothing is too slow; `None`: never.
    pub(crate) fn time_left(&self) -> Option<Duration> {
        (self.min.bytes_per_second > 0).then(|| self.min.grace.saturating_sub(self.behind))
    }

    /// Gives the caller the whole grace again.
    pub(crate) fn reset(&mut self) {
        self.behind = Duration::ZERO;
    }

    /// Notes that the gateway has waited for the caller.
    pub(crate) fn note_wait(&mut self, waited: Duration) {
        self.behind = self.behind.saturating_add(waited);
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
        self.behind = self.behind.saturating_sub(earned);
    }

    /// Returns by how much the caller exceeds its grace; `None`: it is fast enough.
    pub(crate) fn lateness(&self) -> Option<Duration> {
        let has_minimum = self.min.bytes_per_second > 0;
        let late = self.behind.checked_sub(self.min.grace);
        late.filter(|_| has_minimum)
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
    fn a_place_that_others_wait_for_needs_a_higher_rate() {
        let min = MinRate {
            bytes_per_second: 100,
            grace: Duration::from_secs(10),
        };
        let lateness = |bytes_per_tick: usize| {
            let mut holder = RateAllowance::new(min.while_contended());
            for _ in 0..40 {
                holder.note_wait(Duration::from_millis(250));
                holder.note_bytes(bytes_per_tick);
            }
            holder.lateness()
        };
        assert_eq!(lateness(4 * 1024), None, "16 KiB/s");
        assert_eq!(lateness(0), Some(Duration::from_secs(8)));
        assert!(lateness(1024) < lateness(512), "the slowest is the latest");
        let without_minimum = MinRate {
            bytes_per_second: 0,
            ..min
        };
        assert_eq!(without_minimum.while_contended().bytes_per_second, 0);
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
