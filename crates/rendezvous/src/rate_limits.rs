//! Token buckets. Time is an argument.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

/// Rate, and burst.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateLimit {
    /// Amount per second.
    pub per_second: u64,
    /// Amount at once, after idle time.
    pub burst: u64,
}

/// Token bucket by virtual scheduling (ITU-T I.371): it stores when everything so far is paid.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct TokenBucket {
    /// Time at which everything so far is paid.
    paid_until: Option<Instant>,
}

impl TokenBucket {
    /// Spends an amount. Returns how long to wait for more.
    pub(super) fn spend(&mut self, amount: u64, rate: RateLimit, now: Instant) -> Duration {
        // Idle time earns nothing beyond the burst, so the start is never before now.
        let paid_until =
            self.paid_until.map_or(now, |paid| paid.max(now)) + time_cost(amount, rate);
        self.paid_until = Some(paid_until);
        paid_until
            .duration_since(now)
            .saturating_sub(time_cost(rate.burst, rate))
    }

    /// Returns whether an amount may pass at once. A refused amount costs nothing.
    pub(super) fn admit(&mut self, amount: u64, rate: RateLimit, now: Instant) -> bool {
        let before = self.paid_until;
        let admitted = self.spend(amount, rate, now).is_zero();
        if !admitted {
            self.paid_until = before;
        }
        admitted
    }

    /// Refunds a spent amount.
    fn refund(&mut self, amount: u64, rate: RateLimit) {
        self.paid_until = self
            .paid_until
            .and_then(|paid| paid.checked_sub(time_cost(amount, rate)));
    }

    /// Returns whether everything is paid.
    pub(super) fn is_paid(&self, now: Instant) -> bool {
        self.paid_until.is_none_or(|paid| paid <= now)
    }
}

fn time_cost(amount: u64, rate: RateLimit) -> Duration {
    // An hour at most: a sum of costs must not overflow `Instant`.
    let nanos = u128::from(amount) * 1_000_000_000 / u128::from(rate.per_second.max(1));
    Duration::from_nanos(
        u64::try_from(nanos)
            .unwrap_or(u64::MAX)
            .min(3_600_000_000_000),
    )
}

/// Buckets by key, up to a maximum.
#[derive(Debug)]
pub(super) struct KeyedBuckets<K> {
    rate: RateLimit,
    max_keys: usize,
    buckets: HashMap<K, TokenBucket>,
}

impl<K: Eq + Hash> KeyedBuckets<K> {
    /// `max_keys`: maximum of tracked keys. Above it idle keys are forgotten, which costs nothing;
    /// when all are busy, new keys are refused.
    pub(super) fn new(rate: RateLimit, max_keys: usize) -> Self {
        Self {
            rate,
            max_keys,
            buckets: HashMap::new(),
        }
    }

    /// Returns whether an amount of this key may pass.
    pub(super) fn admit(&mut self, key: K, amount: u64, now: Instant) -> bool {
        if self.buckets.len() >= self.max_keys && !self.buckets.contains_key(&key) {
            // A paid bucket equals a new one, so removing it changes nothing.
            self.buckets.retain(|_, bucket| !bucket.is_paid(now));
            if self.buckets.len() >= self.max_keys {
                return false;
            }
        }
        self.buckets
            .entry(key)
            .or_default()
            .admit(amount, self.rate, now)
    }

    /// Refunds a spent amount of this key.
    pub(super) fn refund(&mut self, key: &K, amount: u64) {
        if let Some(bucket) = self.buckets.get_mut(key) {
            bucket.refund(amount, self.rate);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RATE: RateLimit = RateLimit {
        per_second: 10,
        burst: 5,
    };

    #[test]
    fn a_burst_passes_at_once_and_then_the_rate() {
        let (mut bucket, now) = (TokenBucket::default(), Instant::now());
        assert!((0..5).all(|_| bucket.spend(1, RATE, now).is_zero()));
        assert_eq!(bucket.spend(1, RATE, now), Duration::from_millis(100));
        assert_eq!(
            bucket.spend(1, RATE, now + Duration::from_millis(200)),
            Duration::ZERO
        );
    }

    #[test]
    fn a_refused_amount_takes_no_tokens() {
        let (mut bucket, now) = (TokenBucket::default(), Instant::now());
        assert!(bucket.admit(5, RATE, now));
        assert!((0..100).all(|_| !bucket.admit(1, RATE, now)));
        assert!(bucket.admit(1, RATE, now + Duration::from_millis(100)));
    }

    #[test]
    fn a_refunded_amount_may_pass_again_and_no_more() {
        let (mut all, now) = (KeyedBuckets::new(RATE, 2), Instant::now());
        assert!(all.admit('a', 5, now) && !all.admit('a', 1, now));
        all.refund(&'a', 2);
        assert!(all.admit('a', 2, now) && !all.admit('a', 1, now));
        let later = now + Duration::from_secs(10);
        all.refund(&'a', 5);
        assert!(
            all.admit('a', 5, later) && !all.admit('a', 1, later),
            "the burst is the most at once"
        );
    }

    #[test]
    fn keys_do_not_pay_for_each_other_and_the_table_is_bounded() {
        let (mut all, now) = (KeyedBuckets::new(RATE, 2), Instant::now());
        assert!(all.admit('a', 5, now) && !all.admit('a', 1, now));
        assert!(
            all.admit('b', 5, now) && !all.admit('c', 1, now),
            "there is no room, and nobody is silent"
        );
        assert!(all.admit('c', 1, now + Duration::from_secs(1)));
        assert_eq!(all.buckets.len(), 1);
    }

    proptest! {
        #[test]
        fn no_more_passes_than_the_burst_and_the_rate(steps in prop::collection::vec((0..300_u64, 1..4_u64), 1..200)) {
            let (mut bucket, begin) = (TokenBucket::default(), Instant::now());
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
