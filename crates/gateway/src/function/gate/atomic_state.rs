//! The part of a gate that is one number: how many are in, how many may be, and whether somebody waits.
//!
//! Every change is a pure function from one word to the next, so that it can be a single compare-and-swap.

/// In the capacity's place: as many as come.
pub(crate) const UNLIMITED: u32 = 0x7fff_ffff;

const CONTENDED: u64 = 1 << 63;

/// Bits 0–31: requests inside. Bits 32–62: how many may be inside. Bit 63: changes go through the queue's lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Word(pub u64);

impl Word {
    /// Nobody inside.
    pub(super) fn new(capacity: u32) -> Self {
        Self(u64::from(capacity.min(UNLIMITED)) << 32)
    }

    /// Requests inside.
    pub(super) fn inside(self) -> u32 {
        self.0 as u32
    }

    /// How many may be inside.
    pub(super) fn capacity(self) -> u32 {
        (self.0 >> 32) as u32 & UNLIMITED
    }

    /// Whether changes go through the queue's lock.
    pub(super) fn contended(self) -> bool {
        self.0 & CONTENDED != 0
    }

    /// Whether one more may come in.
    pub(super) fn has_room(self) -> bool {
        self.inside() < self.capacity()
    }

    /// One more inside, unless somebody waits or it is full: then the queue decides.
    pub(super) fn entered(self) -> Option<Self> {
        (!self.contended() && self.has_room()).then(|| self.plus(1))
    }

    /// One fewer inside, unless somebody waits: then the queue decides.
    pub(super) fn left(self) -> Option<Self> {
        (!self.contended()).then(|| self.minus(1))
    }

    /// `n` more inside.
    pub(super) fn plus(self, n: u32) -> Self {
        Self(self.0 + u64::from(n))
    }

    /// `n` fewer inside.
    pub(super) fn minus(self, n: u32) -> Self {
        debug_assert!(self.inside() >= n, "more left than came");
        Self(self.0 - u64::from(n))
    }

    /// The same with another capacity.
    pub(super) fn resized(self, capacity: u32) -> Self {
        let kept = self.0 & (CONTENDED | u64::from(u32::MAX));
        Self(kept | u64::from(capacity.min(UNLIMITED)) << 32)
    }

    /// The same with the lock demanded or not.
    pub(super) fn contend(self, yes: bool) -> Self {
        Self(if yes { self.0 | CONTENDED } else { self.0 & !CONTENDED })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_parts_do_not_touch_each_other(capacity in 0u32..=UNLIMITED, inside in 0u32..1_000_000, other in 0u32..=UNLIMITED) {
            let word = Word::new(capacity).plus(inside).contend(true);
            prop_assert_eq!((word.inside(), word.capacity(), word.contended()), (inside, capacity, true));
            let word = word.resized(other).contend(false).minus(inside);
            prop_assert_eq!((word.inside(), word.capacity(), word.contended()), (0, other, false));
        }

        #[test]
        fn nobody_passes_those_who_wait(capacity in 1u32..100, inside in 0u32..100) {
            let word = Word::new(capacity).plus(inside);
            prop_assert_eq!(word.contend(true).entered(), None);
            prop_assert_eq!(word.entered().is_some(), inside < capacity);
        }
    }
}
