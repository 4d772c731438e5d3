//! Limits the name lookups that one instance causes. Pure: time is an argument.
//!
//! Each lookup of a new name is a query to the machine's name servers, which a function could flood
//! with random names below its wildcard. Names that have an address in the instance are not counted:
//! there are few of them, and the node caches their answers.

use std::time::{Duration, Instant};

/// Lookups that may come at once: all names that an instance may have, IPv4 and IPv6 each, and again
/// when a program repeats the queries.
pub(crate) const MAX_LOOKUP_BURST: u32 = 1_024;
/// Interval in which one more is permitted: 20 a second.
const LOOKUP_INTERVAL: Duration = Duration::from_millis(50);

/// The rate of one instance: a token bucket, kept as the time at which it is full.
#[derive(Debug)]
pub(crate) struct LookupRate {
    full_at: Instant,
}

impl LookupRate {
    /// Starts with a full bucket.
    pub(crate) fn new(now: Instant) -> Self {
        Self { full_at: now }
    }

    /// Takes one lookup. Returns false if the rate is exceeded.
    pub(crate) fn take_lookup(&mut self, now: Instant) -> bool {
        let full_at = self.full_at.max(now) + LOOKUP_INTERVAL;
        let is_permitted = full_at - now <= LOOKUP_INTERVAL * MAX_LOOKUP_BURST;
        if is_permitted {
            self.full_at = full_at;
        }
        is_permitted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn permitted_at(rate: &mut LookupRate, now: Instant) -> u32 {
        (0..)
            .find(|_| !rate.take_lookup(now))
            .expect("the rate has a bound")
    }

    #[test]
    fn a_burst_is_permitted_and_then_twenty_a_second() {
        let start = Instant::now();
        let mut rate = LookupRate::new(start);
        assert_eq!(permitted_at(&mut rate, start), MAX_LOOKUP_BURST);
        assert_eq!(permitted_at(&mut rate, start + Duration::from_secs(1)), 20);
        let later = start + Duration::from_secs(3_600);
        assert_eq!(
            permitted_at(&mut rate, later),
            MAX_LOOKUP_BURST,
            "unused lookups do not add up"
        );
    }
}
