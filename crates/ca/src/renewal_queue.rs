//! A queue of certificates by the time of their renewal. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Time at which a certificate issued at `now` for `lifetime` is renewed.
///
/// A third of the lifetime remains then, so that a failed renewal can be repeated.
pub(crate) fn renewal_time(now: Instant, lifetime: Duration) -> Instant {
    now + lifetime * 2 / 3
}

/// Keys ordered by due time; each key has one due time.
#[derive(Debug, Clone)]
pub(crate) struct RenewalQueue<K> {
    by_time: BTreeSet<(Instant, K)>,
    times: BTreeMap<K, Instant>,
}

impl<K> Default for RenewalQueue<K> {
    fn default() -> Self {
        Self {
            by_time: BTreeSet::new(),
            times: BTreeMap::new(),
        }
    }
}

impl<K: Ord + Clone> RenewalQueue<K> {
    /// Schedules `key` at `at`, replacing its earlier time.
    pub(crate) fn schedule(&mut self, key: K, at: Instant) {
        // First, or the old time would stay in `by_time` and make the key due twice.
        self.remove(&key);
        self.times.insert(key.clone(), at);
        self.by_time.insert((at, key));
    }

    /// Unschedules `key`.
    pub(crate) fn remove(&mut self, key: &K) {
        if let Some(at) = self.times.remove(key) {
            self.by_time.remove(&(at, key.clone()));
        }
    }

    /// Time of the earliest renewal.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.by_time.first().map(|(at, _)| *at)
    }

    /// Removes and returns the key that is most overdue at `now`.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<K> {
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
    fn a_third_of_the_lifetime_is_left() {
        let now = Instant::now();
        assert_eq!(
            renewal_time(now, Duration::from_secs(24 * 3600)),
            now + Duration::from_secs(16 * 3600)
        );
    }

    proptest! {
        #[test]
        fn each_key_is_due_once_at_its_last_scheduled_time(steps in proptest::collection::vec((0u8..8, 0u64..50, any::<bool>()), 0..60)) {
            let (begin, mut queue, mut model) = (Instant::now(), RenewalQueue::default(), BTreeMap::new());
            for (key, at, keep) in steps {
                if keep {
                    queue.schedule(key, begin + Duration::from_secs(at));
                    model.insert(key, at);
                } else {
                    queue.remove(&key);
                    model.remove(&key);
                }
            }
            for now in 0..50 {
                prop_assert_eq!(queue.next_due(), model.values().min().map(|at| begin + Duration::from_secs(*at)));
                while let Some(key) = queue.pop_due(begin + Duration::from_secs(now)) {
                    prop_assert_eq!(model.remove(&key), Some(now));
                }
                prop_assert!(model.values().all(|at| *at > now));
            }
        }
    }
}
