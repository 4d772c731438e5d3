//! Policy for spinning before a sleep. Pure.
//!
//! A wakeup across cores costs about 30 µs, one on the same core about 5 µs. So spinning pays only
//! while the peer runs on another core, and only while answers arrive fast enough. Each fruitless
//! spin halves the budget, a fruitful one restores it. When the budget is spent, one wait in
//! [`WAITS_PER_PROBE`] tries again.

use std::time::Duration;

/// Default limit of a spin: below the cost of a wakeup across cores.
pub const DEFAULT_SPIN_BUDGET: Duration = Duration::from_micros(20);
/// Waits between two probes of an endpoint that stopped spinning.
pub const WAITS_PER_PROBE: u32 = 64;

/// Duration of the next spin.
#[derive(Debug, Clone)]
pub struct SpinPolicy {
    max_nanos: u64,
    budget_nanos: u64,
    waits: u32,
}

impl SpinPolicy {
    /// Spins for at most `budget`; zero disables spinning.
    pub fn new(budget: Duration) -> Self {
        let full = u64::try_from(budget.as_nanos()).unwrap_or(u64::MAX);
        Self {
            max_nanos: full,
            budget_nanos: full,
            waits: 0,
        }
    }

    /// Returns the duration of the next spin. `own` and `peer` are core numbers plus one; 0:
    /// unknown.
    pub fn next_budget(&mut self, own: u32, peer: u32) -> Duration {
        // On one core a spin only delays the peer that it waits for.
        if own == 0 || peer == 0 || own == peer {
            return Duration::ZERO;
        }
        if self.budget_nanos > 0 {
            return Duration::from_nanos(self.budget_nanos);
        }
        self.waits = (self.waits + 1) % WAITS_PER_PROBE;
        Duration::from_nanos(if self.waits == 0 { self.max_nanos } else { 0 })
    }

    /// Records the result of a spin of non-zero length.
    pub fn record_spin(&mut self, fruitful: bool) {
        let half = self.budget_nanos / 2;
        self.budget_nanos = match fruitful {
            true => self.max_nanos,
            // Below 1/16 of the limit a spin no longer covers a wakeup: stop instead of halving on.
            false if half >= self.max_nanos / 16 => half,
            false => 0,
        };
    }
}

impl Default for SpinPolicy {
    fn default() -> Self {
        Self::new(DEFAULT_SPIN_BUDGET)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn no_spin_on_the_same_core_as_the_peer() {
        let mut spin = SpinPolicy::default();
        assert_eq!(spin.next_budget(1, 1), Duration::ZERO);
        assert_eq!(spin.next_budget(0, 1), Duration::ZERO);
        assert_eq!(spin.next_budget(1, 0), Duration::ZERO);
        assert_eq!(spin.next_budget(1, 2), DEFAULT_SPIN_BUDGET);
    }

    #[test]
    fn fruitless_spinning_stops_and_is_probed_again() {
        let mut spin = SpinPolicy::default();
        let mut spent = Duration::ZERO;
        while let budget @ 1.. = spin.next_budget(1, 2).as_nanos() {
            spent += Duration::from_nanos(u64::try_from(budget).unwrap());
            spin.record_spin(false);
        }
        assert!(
            spent < 2 * DEFAULT_SPIN_BUDGET,
            "giving up is cheap: {spent:?}"
        );
        let probes = (0..10 * WAITS_PER_PROBE)
            .filter(|_| spin.next_budget(1, 2) > Duration::ZERO)
            .count();
        assert_eq!(probes, 10);
        spin.record_spin(true);
        assert_eq!(spin.next_budget(1, 2), DEFAULT_SPIN_BUDGET);
    }

    proptest! {
        #[test]
        fn a_spin_never_exceeds_the_budget(fruits: Vec<bool>, full in 0u64..1_000_000) {
            let mut spin = SpinPolicy::new(Duration::from_nanos(full));
            for fruitful in fruits {
                let budget = spin.next_budget(1, 2);
                prop_assert!(budget <= Duration::from_nanos(full));
                if budget > Duration::ZERO {
                    spin.record_spin(fruitful);
                }
            }
        }
    }
}
