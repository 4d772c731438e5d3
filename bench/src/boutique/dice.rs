//! Random choices that a seed repeats: SplitMix64 (Steele, Lea, Flood: "Fast Splittable Pseudorandom Number Generators").

/// A generator. Not for secrets.
#[derive(Debug, Clone)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// One of `choices`, which must not be empty.
    pub(crate) fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[(self.roll() % choices.len() as u64) as usize]
    }

    /// One of `choices`, each as likely as its weight says.
    pub(crate) fn weigh<T: Copy>(&mut self, choices: &[(T, u64)]) -> T {
        let total: u64 = choices.iter().map(|(_, weight)| weight).sum();
        let mut left = self.roll() % total;
        for (choice, weight) in choices {
            match left.checked_sub(*weight) {
                Some(rest) => left = rest,
                None => return *choice,
            }
        }
        unreachable!("what is left is smaller than the sum of the weights")
    }

    /// From 0 (inclusive) to 1 (exclusive).
    pub(crate) fn share(&mut self) -> f64 {
        (self.roll() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_kept() {
        let mut dice = Dice::new(1);
        let mut counts = [0_u32; 3];
        (0..10_000).for_each(|_| counts[dice.weigh(&[(0, 1), (1, 2), (2, 7)])] += 1);
        assert!(
            (900..1_100).contains(&counts[0]) && (6_800..7_200).contains(&counts[2]),
            "{counts:?}"
        );
        assert!((0..1_000).all(|_| (0.0..1.0).contains(&dice.share())));
    }
}
