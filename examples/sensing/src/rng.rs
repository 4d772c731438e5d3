//! Random choices that a seed repeats: SplitMix64 (Steele, Lea, Flood: "Fast Splittable
//! Pseudorandom Number Generators").

/// A generator. Not for secrets.
#[derive(Debug, Clone)]
pub(crate) struct ExampleRng(u64);

impl ExampleRng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From `low` (inclusive) to `high` (exclusive), which is greater.
    pub(crate) fn next_between(&mut self, low: u64, high: u64) -> u64 {
        low + self.next_u64() % (high - low)
    }
}
