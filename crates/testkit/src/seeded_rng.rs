//! Random numbers from a seed, so that a failing case can be repeated.

/// A linear congruential generator, good enough to vary tests.
#[derive(Debug)]
pub struct SeededRng(u64);

impl SeededRng {
    /// Starts the numbers of this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed + 1)
    }

    /// Returns a number below `sides`, which is not 0.
    pub fn below(&mut self, sides: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }

    /// Returns an index of a slice of this length, which is not 0.
    pub fn index(&mut self, length: usize) -> usize {
        // The remainder is below a `usize`.
        self.below(length as u64) as usize
    }

    /// Picks one of several.
    pub fn pick<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.index(all.len())]
    }
}
