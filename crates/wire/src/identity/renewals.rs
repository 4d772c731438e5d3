//! When certificates are renewed: a queue by time. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// When a certificate that was issued at `now` for `lifetime` is renewed: with a third of its life left, so that a renewal that fails can be
/// tried again.
pub fn renewal(now: Instant, lifetime: Duration) -> Instant {
    now + lifetime * 2 / 3
}

/// Who is due when; each once.
#[derive(Debug, Clone)]
pub struct Renewals<K> {
    by_time: BTreeSet<(Instant, K)>,
    times: BTreeMap<K, Instant>,
}

impl<K> Default for Renewals<K> {
    fn default() -> Self {
        Self { by_time: BTreeSet::new(), times: BTreeMap::new() }
    }
}

impl<K: Ord + Clone> Renewals<K> {
    /// `key` is due at `at`, and not at another time that was said before.
    pub fn set(&mut self, key: K, at: Instant) {
        self.remove(&key);
        self.times.insert(key.clone(), at);
        self.by_time.insert((at, key));
    }

    /// It is not due any more.
    pub fn remove(&mut self, key: &K) {
        if let Some(at) = self.times.remove(key) {
            self.by_time.remove(&(at, key.clone()));
        }
    }

    /// When the next one is due.
    pub fn next(&self) -> Option<Instant> {
        self.by_time.first().map(|(at, _)| *at)
    }

    /// Takes out one that is due at `now`, the longest due first.
    pub fn due(&mut self, now: Instant) -> Option<K> {
        let (_, key) = self.by_time.first().filter(|(at, _)| *at <= now)?.clone();
        self.remove(&key);
        Some(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_third_of_the_life_is_left() {
        let now = Instant::now();
        assert_eq!(renewal(now, Duration::from_secs(24 * 3600)), now + Duration::from_secs(16 * 3600));
    }

    proptest! {
        #[test]
        fn each_is_due_once_at_the_time_that_was_said_last(said in proptest::collection::vec((0u8..8, 0u64..50, any::<bool>()), 0..60)) {
            let (begin, mut renewals, mut model) = (Instant::now(), Renewals::default(), BTreeMap::new());
            for (key, at, keep) in said {
                if keep {
                    renewals.set(key, begin + Duration::from_secs(at));
                    model.insert(key, at);
                } else {
                    renewals.remove(&key);
                    model.remove(&key);
                }
            }
            for now in 0..50 {
                prop_assert_eq!(renewals.next(), model.values().min().map(|at| begin + Duration::from_secs(*at)));
                while let Some(key) = renewals.due(begin + Duration::from_secs(now)) {
                    prop_assert_eq!(model.remove(&key), Some(now));
                }
                prop_assert!(model.values().all(|at| *at > now));
            }
        }
    }
}
