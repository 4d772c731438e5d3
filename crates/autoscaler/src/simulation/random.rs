//! A seeded generator of random numbers: a run with one seed is the same on every machine.

/// SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
pub(super) struct SeededRandom(u64);

impl SeededRandom {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number from 0 up to 1, which is not included.
    pub(super) fn next_share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns the arrivals of a Poisson process with this mean.
    pub(super) fn next_poisson(&mut self, mean: f64) -> f64 {
        // A sum of small parts keeps the exponential of the product method above 0.
        let parts = (mean / 20.0).ceil().max(1.0);
        (0..parts as u32)
            .map(|_| self.small_poisson(mean / parts))
            .sum()
    }

    /// Counts factors until their product is below the exponential (Knuth's method).
    fn small_poisson(&mut self, mean: f64) -> f64 {
        let (limit, mut product, mut count) = ((-mean).exp(), self.next_share(), 0.0);
        while product > limit {
            product *= self.next_share();
            count += 1.0;
        }
        count
    }
}

#[test]
fn poisson_numbers_have_their_mean_and_variance() {
    let mut random = SeededRandom::new(1);
    for mean in [0.5, 10.0, 1_000.0] {
        let numbers: Vec<f64> = (0..4_000).map(|_| random.next_poisson(mean)).collect();
        let average = numbers.iter().sum::<f64>() / 4_000.0;
        let variance = numbers.iter().map(|n| (n - average).powi(2)).sum::<f64>() / 4_000.0;
        assert!((average / mean - 1.0).abs() < 0.06, "{mean}: {average}");
        assert!((variance / mean - 1.0).abs() < 0.1, "{mean}: {variance}");
    }
}
