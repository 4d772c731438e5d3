//! Reproducible random choices from a seed: SplitMix64 (Steele, Lea, Flood: "Fast Splittable
//! Pseudorandom Number Generators").

/// A random number generator, not for secrets.
#[derive(Debug, Clone)]
pub(crate) struct SplitMixRng(u64);

impl SplitMixRng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next_u64(&mut self) -> u64 {
        // The golden gamma and the two multipliers below are those of the paper.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Picks an element of `choices`, which must not be empty.
    pub(crate) fn pick_one<T: Copy>(&mut self, choices: &[T]) -> T {
        // The bias of the remainder is about 2^-60 for lists this short.
        choices[(self.next_u64() % choices.len() as u64) as usize]
    }

    /// Picks an element of `choices` with a probability in proportion to its weight.
    pub(crate) fn pick_weighted<T: Copy>(&mut self, choices: &[(T, u64)]) -> T {
        let total: u64 = choices.iter().map(|(_, weight)| weight).sum();
        let mut left = self.next_u64() % total;
        for (choice, weight) in choices {
            match left.checked_sub(*weight) {
                Some(rest) => left = rest,
                None => return *choice,
            }
        }
        unreachable!("what is left is smaller than the sum of the weights")
    }

    /// Returns a number from 0 (inclusive) to 1 (exclusive).
    pub(crate) fn next_fraction(&mut self) -> f64 {
        // 53 bits: as many as an f64 represents exactly.
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_follow_the_weights() {
        let mut rng = SplitMixRng::new(1);
        let mut counts = [0_u32; 3];
        (0..10_000).for_each(|_| counts[rng.pick_weighted(&[(0, 1), (1, 2), (2, 7)])] += 1);
        assert!(
            (900..1_100).contains(&counts[0]) && (6_800..7_200).contains(&counts[2]),
            "{counts:?}"
        );
        assert!((0..1_000).all(|_| (0.0..1.0).contains(&rng.next_fraction())));
    }
}
