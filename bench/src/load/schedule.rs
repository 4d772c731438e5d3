//! Due times of the requests of an open loop, without a clock: the time since the start is an
//! argument.

use std::time::Duration;

/// A constant arrival rate.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ArrivalSchedule {
    per_second: f64,
    total: u64,
}

impl ArrivalSchedule {
    /// Creates a schedule of `per_second` arrivals per second for `length`. The rate must be
    /// positive and finite.
    pub(crate) fn new(per_second: f64, length: Duration) -> Self {
        assert!(
            per_second > 0.0 && per_second.is_finite(),
            "a rate is positive"
        );
        Self {
            per_second,
            total: (per_second * length.as_secs_f64()).round() as u64,
        }
    }

    /// Returns the number of all arrivals.
    pub(crate) fn total_arrivals(&self) -> u64 {
        self.total
    }

    /// Returns the due time of arrival `n` (from 0), since the start.
    pub(crate) fn arrival_time(&self, n: u64) -> Duration {
        Duration::from_secs_f64(n as f64 / self.per_second)
    }

    /// Returns the number of arrivals due at `elapsed`. A driver that slept too long catches up: no
    /// arrival is left out.
    pub(crate) fn due_arrivals(&self, elapsed: Duration) -> u64 {
        let guess = (elapsed.as_secs_f64() * self.per_second) as u64;
        let mut due = guess.saturating_sub(1); // rounding errs by less than one arrival
        while due < self.total && self.arrival_time(due) <= elapsed {
            due += 1;
        }
        due.min(self.total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn arrivals_are_two_hundred_per_second() {
        let schedule = ArrivalSchedule::new(200.0, Duration::from_secs(3));
        assert_eq!(schedule.total_arrivals(), 600);
        assert_eq!(schedule.arrival_time(200), Duration::from_secs(1));
        assert_eq!(
            schedule.due_arrivals(Duration::ZERO),
            1,
            "the first is due at once"
        );
        assert_eq!(schedule.due_arrivals(Duration::from_millis(12)), 3);
        assert_eq!(
            schedule.due_arrivals(Duration::from_secs(60)),
            600,
            "a stall of a minute: all are due"
        );
    }

    proptest! {
        #[test]
        fn arrivals_are_due_up_to_now(rate in 0.5f64..100_000.0, millis in 1u64..20_000, at in 0u64..30_000_000) {
            let schedule = ArrivalSchedule::new(rate, Duration::from_millis(millis));
            let elapsed = Duration::from_micros(at);
            let due = schedule.due_arrivals(elapsed);
            prop_assert!(due <= schedule.total_arrivals());
            prop_assert!(due == 0 || schedule.arrival_time(due - 1) <= elapsed);
            prop_assert!(due == schedule.total_arrivals() || schedule.arrival_time(due) > elapsed);
        }
    }
}
