//! Largest number of replicas that was wanted within the scale-down window.

use std::time::Duration;

/// Number of slots: with 16, the window is at most a fifteenth too long.
const SLOTS: u64 = 16;

/// Largest of the numbers that were recorded within a window of any length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RecentMaximum {
    maxima: [u32; SLOTS as usize],
    /// Number of the newest slot.
    newest: u64,
    slot_millis: u64,
}

impl RecentMaximum {
    /// Remembers numbers for `window`; with 0 only the newest one.
    pub(super) fn new(window: Duration) -> Self {
        let millis = u64::try_from(window.as_millis()).unwrap_or(u64::MAX);
        Self {
            maxima: [0; SLOTS as usize],
            newest: 0,
            // The newest slot is not full, so the others have to cover the window.
            slot_millis: millis.div_ceil(SLOTS - 1),
        }
    }

    /// Records a number, `age` after the start, and returns the largest one in the window.
    pub(super) fn record(&mut self, age: Duration, replicas: u32) -> u32 {
        let millis = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
        // Without a window no number is remembered.
        let Some(slot) = millis.checked_div(self.slot_millis) else {
            return replicas;
        };
        let passed = slot.saturating_sub(self.newest).min(SLOTS);
        self.newest = self.newest.max(slot);
        for age in 0..passed {
            self.maxima[self.position(age)] = 0;
        }
        let position = self.position(0);
        self.maxima[position] = self.maxima[position].max(replicas);
        self.maxima.iter().copied().max().unwrap_or(replicas)
    }

    pub(super) fn clear(&mut self) {
        self.maxima.fill(0);
    }

    fn position(&self, age: u64) -> usize {
        (self.newest.saturating_sub(age) % SLOTS) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn without_a_window_the_newest_number_counts() {
        let mut maximum = RecentMaximum::new(Duration::ZERO);
        assert_eq!(maximum.record(Duration::ZERO, 9), 9);
        assert_eq!(maximum.record(Duration::ZERO, 1), 1);
    }

    proptest! {
        /// A number counts for the window, and for a fifteenth of it longer at most.
        #[test]
        fn a_number_counts_for_the_window(window in 1u64..300_000, steps in prop::collection::vec((0u64..40_000, 0u32..50), 1..60)) {
            let mut maximum = RecentMaximum::new(Duration::from_millis(window));
            let (mut now, mut all) = (0, Vec::new());
            for (step, replicas) in steps {
                now += step;
                all.push((now, replicas));
                let found = maximum.record(Duration::from_millis(now), replicas);
                let largest = |millis: u64| all.iter().filter(|one| one.0 + millis >= now).map(|one| one.1).max().unwrap();
                prop_assert!(found >= largest(window), "{found}");
                prop_assert!(found <= largest(window + 2 * (window / 15 + 1)), "{found}");
            }
        }
    }
}
