//! The part of a gate that is one number: how many are in, how many may be, and whether somebody waits.
//!
//! Every change is a pure function from one word to the next, so that it can be a single compare-and-swap.

/// In the capacity's place: as many as come.
pub(crate) const UNLIMITED: u32 = 0x7fff_ffff;

const CONTENDED_BIT: u64 = 1 << 63;

/// Bits 0–31: requests inside. Bits 32–62: how many may be inside. Bit 63: changes go through the queue's lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct GateState(pub u64);

impl GateState {
    /// Nobody inside.
    pub(super) fn new(capacity: u32) -> Self {
        Self(u64::from(capacity.min(UNLIMITED)) << 32)
    }

    /// Requests inside.
    pub(super) fn admitted_count(self) -> u32 {
        self.0 as u32
    }

    /// How many may be inside.
    pub(super) fn capacity(self) -> u32 {
        (self.0 >> 32) as u32 & UNLIMITED
    }

    /// Whether changes go through the queue's lock.
    pub(super) fn is_contended(self) -> bool {
        self.0 & CONTENDED_BIT != 0
    }

    /// Whether one more may come in.
    pub(super) fn has_capacity(self) -> bool {
        self.admitted_count() < self.capacity()
    }

    /// One more inside, unless somebody waits or it is full: then the queue decides.
    pub(super) fn with_entry(self) -> Option<Self> {
        (!self.is_contended() && self.has_capacity()).then(|| self.plus_admitted(1))
    }

    /// One fewer inside, unless somebody waits: then the queue decides.
    pub(super) fn with_exit(self) -> Option<Self> {
        (!self.is_contended()).then(|| self.minus_admitted(1))
    }

    /// `n` more inside.
    pub(super) fn plus_admitted(self, n: u32) -> Self {
        Self(self.0 + u64::from(n))
    }

    /// `n` fewer inside.
    pub(super) fn minus_admitted(self, n: u32) -> Self {
        debug_assert!(self.admitted_count() >= n, "more left than came");
        Self(self.0 - u64::from(n))
    }

    /// The same with another capacity.
    pub(super) fn with_capacity(self, capacity: u32) -> Self {
        let kept = self.0 & (CONTENDED_BIT | u64::from(u32::MAX));
        Self(kept | u64::from(capacity.min(UNLIMITED)) << 32)
    }

    /// The same with the lock demanded or not.
    pub(super) fn with_contended(self, is_contended: bool) -> Self {
        Self(if is_contended {
            self.0 | CONTENDED_BIT
        } else {
            self.0 & !CONTENDED_BIT
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_parts_do_not_touch_each_other(capacity in 0u32..=UNLIMITED, inside in 0u32..1_000_000, other in 0u32..=UNLIMITED) {
            let state = GateState::new(capacity).plus_admitted(inside).with_contended(true);
            prop_assert_eq!((state.admitted_count(), state.capacity(), state.is_contended()), (inside, capacity, true));
            let state = state.with_capacity(other).with_contended(false).minus_admitted(inside);
            prop_assert_eq!((state.admitted_count(), state.capacity(), state.is_contended()), (0, other, false));
        }

        #[test]
        fn nobody_passes_those_who_wait(capacity in 1u32..100, inside in 0u32..100) {
            let state = GateState::new(capacity).plus_admitted(inside);
            prop_assert_eq!(state.with_contended(true).with_entry(), None);
            prop_assert_eq!(state.with_entry().is_some(), inside < capacity);
        }
    }
}
