//! Average of a load over the last buckets of time.

use std::ops::Range;

/// Loads of the last `N` buckets of time. A bucket without a sample counts for nothing, so that
/// missing samples do not look like a low load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LoadWindow<const N: usize> {
    // Two arrays have no padding.
    sums: [u64; N],
    samples: [u16; N],
    /// Number of the newest bucket.
    newest: u64,
}

impl<const N: usize> LoadWindow<N> {
    pub(super) fn new() -> Self {
        Self {
            sums: [0; N],
            samples: [0; N],
            newest: 0,
        }
    }

    /// Moves on to a bucket, and forgets those that it replaces.
    pub(super) fn advance_to(&mut self, bucket: u64) {
        let passed = bucket.saturating_sub(self.newest).min(N as u64);
        self.newest = self.newest.max(bucket);
        for age in 0..passed {
            let position = self.position(age);
            (self.sums[position], self.samples[position]) = (0, 0);
        }
    }

    /// Adds a load, in thousandths, to the newest bucket.
    pub(super) fn add(&mut self, load: u64) {
        let position = self.position(0);
        // A bucket that is full of samples is as good as one with all of them.
        if let Some(samples) = self.samples[position].checked_add(1) {
            self.samples[position] = samples;
            self.sums[position] = self.sums[position].saturating_add(load);
        }
    }

    pub(super) fn clear(&mut self) {
        self.samples.fill(0);
        self.sums.fill(0);
    }

    /// Returns the average of buckets by their age, of which 0 is the newest. It is rounded down,
    /// and `None` if no sample is in them. Each bucket counts the same, however many samples it has.
    pub(super) fn average(&self, ages: Range<usize>) -> Option<u64> {
        let oldest = self.newest.saturating_add(1).min(N as u64) as usize;
        let (mut sum, mut known) = (0u64, 0u64);
        for age in ages.start..ages.end.min(oldest) {
            let position = self.position(age as u64);
            let samples = u64::from(self.samples[position]);
            if let Some(average) = self.sums[position].checked_div(samples) {
                sum = sum.saturating_add(average);
                known += 1;
            }
        }
        sum.checked_div(known)
    }

    fn position(&self, age: u64) -> usize {
        (self.newest.saturating_sub(age) % N as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn buckets_without_samples_count_for_nothing() {
        let mut window = LoadWindow::<4>::new();
        assert_eq!(window.average(0..4), None);
        window.add(10);
        window.advance_to(2);
        window.add(30);
        window.add(50);
        assert_eq!(
            window.average(0..4),
            Some(25),
            "10 and the average of 30 and 50"
        );
        assert_eq!(window.average(0..2), Some(40));
        assert_eq!(window.average(1..4), Some(10));
        window.advance_to(4);
        assert_eq!(
            window.average(0..4),
            Some(40),
            "the 10 is out of the window"
        );
        window.advance_to(1_000);
        assert_eq!(window.average(0..4), None);
    }

    proptest! {
        #[test]
        fn the_average_is_that_of_the_last_buckets(samples in prop::collection::vec((0u64..4, 0u64..1_000), 1..60)) {
            let mut window = LoadWindow::<8>::new();
            let (mut bucket, mut all) = (0, Vec::new());
            for (step, load) in samples {
                bucket += step;
                window.advance_to(bucket);
                window.add(load);
                all.push((bucket, load));
            }
            let averages: Vec<u64> = (0..=bucket.min(7))
                .map(|age| all.iter().filter(|one| one.0 == bucket - age).map(|one| one.1).collect::<Vec<_>>())
                .filter(|loads| !loads.is_empty())
                .map(|loads| loads.iter().sum::<u64>() / loads.len() as u64)
                .collect();
            prop_assert_eq!(window.average(0..8), Some(averages.iter().sum::<u64>() / averages.len() as u64));
        }
    }
}
