//! Selection of a callee's instance for a call: pure.

use std::cell::Cell;
use std::time::{Duration, Instant};

use nearpath_wire::hop::balance::draw_pair;

/// Delay after a failed attempt: the first, and the longest.
const BACKOFF_DELAY_RANGE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Picks the less loaded of two instances drawn at random. `load` returns the open calls of an
/// instance, or `None` while it backs off. If both do, any other is taken.
pub(super) fn pick_peer(
    count: usize,
    random: u64,
    load: impl Fn(usize) -> Option<u32>,
) -> Option<usize> {
    let drawn = draw_pair(count, random);
    let of = |k| Some((load(k)?, k));
    let two = drawn
        .into_iter()
        .flat_map(|(first, second)| [first, second])
        .filter_map(of)
        .min_by_key(|(open, _)| *open);
    let any = || (0..count).filter_map(of).min();
    two.or_else(any).map(|(_, k)| k)
}

/// Backoff of an instance: after a failure it is skipped for a while, longer each time.
#[derive(Debug, Default)]
pub(super) struct PeerBackoff {
    retry_at: Cell<Option<Instant>>,
    failures: Cell<u32>,
}

impl PeerBackoff {
    pub(super) fn is_ready(&self, now: Instant) -> bool {
        self.retry_at.get().is_none_or(|until| until <= now)
    }

    /// Records a failure. Attempts that began before the backoff add nothing.
    pub(super) fn record_failure(&self, now: Instant) {
        if self.is_ready(now) {
            // The exponent is bounded, because `u32` overflows at 32.
            let delay = BACKOFF_DELAY_RANGE.0 * 2_u32.pow(self.failures.get().min(16));
            self.retry_at
                .set(Some(now + delay.min(BACKOFF_DELAY_RANGE.1)));
            self.failures.set(self.failures.get() + 1);
        }
    }

    /// Records a response, which ends the backoff.
    pub(super) fn record_success(&self) {
        self.retry_at.set(None);
        self.failures.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn one_that_can_be_called_is_found_whenever_there_is_one(loads in prop::collection::vec(prop::option::of(0u32..9), 0..9), random: u64) {
            match pick_peer(loads.len(), random, |k| loads[k]) {
                Some(k) => prop_assert!(loads[k].is_some()),
                None => prop_assert!(loads.iter().all(Option::is_none)),
            }
        }

        #[test]
        fn the_busiest_of_three_is_never_chosen(random: u64) {
            let loads = [Some(1), Some(7), Some(3)];
            prop_assert_ne!(pick_peer(3, random, |k| loads[k]), Some(1));
        }

        #[test]
        fn it_is_tried_again_within_the_longest_pause(steps in prop::collection::vec((0u64..100_000, any::<bool>()), 0..50)) {
            let (backoff, mut now) = (PeerBackoff::default(), Instant::now());
            for (pass, answers) in steps {
                now += Duration::from_millis(pass);
                if answers { backoff.record_success() } else { backoff.record_failure(now) }
                prop_assert_eq!(backoff.is_ready(now), answers);
                prop_assert!(backoff.is_ready(now + BACKOFF_DELAY_RANGE.1));
            }
        }
    }

    #[test]
    fn each_gets_its_share() {
        let mut hits = [0; 4];
        let mut random = 1_u64;
        for _ in 0..4000 {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            hits[pick_peer(4, random.rotate_left(32), |_| Some(0)).unwrap()] += 1;
        }
        assert!(
            hits.iter().all(|hits| (700..1300).contains(hits)),
            "{hits:?}"
        );
    }
}
