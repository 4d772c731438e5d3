//! How much may pass in which time: token buckets. Time is an argument.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

/// So much a second, and so much at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// A second.
    pub per_second: u64,
    /// At once, after a time of silence.
    pub burst: u64,
}

/// One bucket: it says when what has passed is paid for (the virtual scheduling of ITU-T I.371).
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Bucket {
    /// Until then everything that passed is paid for.
    paid: Option<Instant>,
}

impl Bucket {
    /// So much passes. How long to wait until more may.
    pub(super) fn spend(&mut self, amount: u64, rate: Rate, now: Instant) -> Duration {
        let paid = self.paid.map_or(now, |paid| paid.max(now)) + cost(amount, rate);
        self.paid = Some(paid);
        paid.duration_since(now).saturating_sub(cost(rate.burst, rate))
    }

    /// Whether so much may pass at once. What may not costs nothing.
    pub(super) fn admit(&mut self, amount: u64, rate: Rate, now: Instant) -> bool {
        let before = self.paid;
        let admitted = self.spend(amount, rate, now).is_zero();
        if !admitted {
            self.paid = before;
        }
        admitted
    }

    /// So much of what was let pass costs nothing after all.
    fn give_back(&mut self, amount: u64, rate: Rate) {
        self.paid = self.paid.and_then(|paid| paid.checked_sub(cost(amount, rate)));
    }

    /// Whether all that has passed is paid for.
    pub(super) fn is_full(&self, now: Instant) -> bool {
        self.paid.is_none_or(|paid| paid <= now)
    }
}

fn cost(amount: u64, rate: Rate) -> Duration {
    let nanos = u128::from(amount) * 1_000_000_000 / u128::from(rate.per_second.max(1));
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX).min(3_600_000_000_000))
}

/// A bucket for each of those that come, as many as there is room for.
#[derive(Debug)]
pub(super) struct Buckets<K> {
    rate: Rate,
    most: usize,
    all: HashMap<K, Bucket>,
}

impl<K: Eq + Hash> Buckets<K> {
    /// `most`: how many are known at a time. When there are more, those who have been silent are forgotten, which costs
    /// nothing; when all are busy, nobody new is let in.
    pub(super) fn new(rate: Rate, most: usize) -> Self {
        Self { rate, most, all: HashMap::new() }
    }

    /// Whether so much of this one may pass.
    pub(super) fn admit(&mut self, key: K, amount: u64, now: Instant) -> bool {
        if self.all.len() >= self.most && !self.all.contains_key(&key) {
            self.all.retain(|_, bucket| !bucket.is_full(now));
            if self.all.len() >= self.most {
                return false;
            }
        }
        self.all.entry(key).or_default().admit(amount, self.rate, now)
    }

    /// So much of this one's that passed costs nothing after all.
    pub(super) fn give_back(&mut self, key: &K, amount: u64) {
        if let Some(bucket) = self.all.get_mut(key) {
            bucket.give_back(amount, self.rate);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RATE: Rate = Rate { per_second: 10, burst: 5 };

    #[test]
    fn a_burst_passes_and_then_the_rate() {
        let (mut bucket, now) = (Bucket::default(), Instant::now());
        assert!((0..5).all(|_| bucket.spend(1, RATE, now).is_zero()));
        assert_eq!(bucket.spend(1, RATE, now), Duration::from_millis(100));
        assert_eq!(bucket.spend(1, RATE, now + Duration::from_millis(200)), Duration::ZERO);
    }

    #[test]
    fn who_is_refused_owes_nothing() {
        let (mut bucket, now) = (Bucket::default(), Instant::now());
        assert!(bucket.admit(5, RATE, now));
        assert!((0..100).all(|_| !bucket.admit(1, RATE, now)));
        assert!(bucket.admit(1, RATE, now + Duration::from_millis(100)));
    }

    #[test]
    fn what_is_given_back_may_pass_again_and_no_more_than_that() {
        let (mut all, now) = (Buckets::new(RATE, 2), Instant::now());
        assert!(all.admit('a', 5, now) && !all.admit('a', 1, now));
        all.give_back(&'a', 2);
        assert!(all.admit('a', 2, now) && !all.admit('a', 1, now));
        let later = now + Duration::from_secs(10);
        all.give_back(&'a', 5);
        assert!(all.admit('a', 5, later) && !all.admit('a', 1, later), "the burst is the most at once");
    }

    #[test]
    fn one_does_not_pay_for_another_and_the_table_does_not_grow() {
        let (mut all, now) = (Buckets::new(RATE, 2), Instant::now());
        assert!(all.admit('a', 5, now) && !all.admit('a', 1, now));
        assert!(all.admit('b', 5, now) && !all.admit('c', 1, now), "there is no room, and nobody is silent");
        assert!(all.admit('c', 1, now + Duration::from_secs(1)));
        assert_eq!(all.all.len(), 1);
    }

    proptest! {
        #[test]
        fn no_more_passes_than_the_burst_and_the_rate(steps in prop::collection::vec((0..300_u64, 1..4_u64), 1..200)) {
            let (mut bucket, begin) = (Bucket::default(), Instant::now());
            let (mut at, mut passed) = (0, 0);
            for (millis, amount) in steps {
                at += millis;
                if bucket.admit(amount, RATE, begin + Duration::from_millis(at)) {
                    passed += amount;
                }
                prop_assert!(passed * 1000 <= RATE.burst * 1000 + at * RATE.per_second);
            }
        }
    }
}
