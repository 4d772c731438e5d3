//! When to spin before sleeping, as a pure policy.
//!
//! A wake-up across processors costs about 30 µs, one on the same processor about 5. So spinning pays only while the peer
//! runs on another processor, and only while answers come fast enough: each fruitless spin halves the budget, a fruitful
//! one restores it, and when it is spent, one wait in [`PROBE_EVERY`] tries again.

use std::time::Duration;

/// Longest spin, unless told otherwise.
pub const DEFAULT_BUDGET: Duration = Duration::from_micros(20);
/// A party that has given up spinning tries it again once in so many waits.
pub const PROBE_EVERY: u32 = 64;

/// How long to spin before the next sleep.
#[derive(Debug, Clone)]
pub struct Spin {
    full: u64,
    now: u64,
    waits: u32,
}

impl Spin {
    /// Spins for at most `budget`; zero means never.
    pub fn new(budget: Duration) -> Self {
        let full = u64::try_from(budget.as_nanos()).unwrap_or(u64::MAX);
        Self { full, now: full, waits: 0 }
    }

    /// How long to spin now. `own` and `peer` are processors as desks name them: plus one, 0 when unknown.
    pub fn budget(&mut self, own: u32, peer: u32) -> Duration {
        if own == 0 || peer == 0 || own == peer {
            return Duration::ZERO;
        }
        if self.now > 0 {
            return Duration::from_nanos(self.now);
        }
        self.waits = (self.waits + 1) % PROBE_EVERY;
        Duration::from_nanos(if self.waits == 0 { self.full } else { 0 })
    }

    /// What came of a spin that was not zero long.
    pub fn spun(&mut self, fruitful: bool) {
        let half = self.now / 2;
        self.now = match fruitful {
            true => self.full,
            false if half >= self.full / 16 => half,
            false => 0,
        };
    }
}

impl Default for Spin {
    fn default() -> Self {
        Self::new(DEFAULT_BUDGET)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn never_beside_the_peer() {
        let mut spin = Spin::default();
        assert_eq!(spin.budget(1, 1), Duration::ZERO);
        assert_eq!(spin.budget(0, 1), Duration::ZERO);
        assert_eq!(spin.budget(1, 0), Duration::ZERO);
        assert_eq!(spin.budget(1, 2), DEFAULT_BUDGET);
    }

    #[test]
    fn gives_up_and_tries_again() {
        let mut spin = Spin::default();
        let mut spent = Duration::ZERO;
        while let budget @ 1.. = spin.budget(1, 2).as_nanos() {
            spent += Duration::from_nanos(u64::try_from(budget).unwrap());
            spin.spun(false);
        }
        assert!(spent < 2 * DEFAULT_BUDGET, "giving up is cheap: {spent:?}");
        let probes = (0..10 * PROBE_EVERY).filter(|_| spin.budget(1, 2) > Duration::ZERO).count();
        assert_eq!(probes, 10);
        spin.spun(true);
        assert_eq!(spin.budget(1, 2), DEFAULT_BUDGET);
    }

    proptest! {
        #[test]
        fn never_over_budget(fruits: Vec<bool>, full in 0u64..1_000_000) {
            let mut spin = Spin::new(Duration::from_nanos(full));
            for fruitful in fruits {
                let budget = spin.budget(1, 2);
                prop_assert!(budget <= Duration::from_nanos(full));
                if budget > Duration::ZERO {
                    spin.spun(fruitful);
                }
            }
        }
    }
}
