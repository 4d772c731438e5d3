//! State of a gate in one number: admitted requests, capacity, and whether changes need the
//! queue's lock.
//!
//! Every change is a pure function from one state to the next, so that it can be a single
//! compare-and-swap.

/// Capacity without a limit: all 31 bits of its field.
pub(crate) const UNLIMITED: u32 = 0x7fff_ffff;

const CONTENDED_BIT: u64 = 1 << 63;

/// Bits 0–31: admitted requests. Bits 32–62: capacity. Bit 63: changes need the queue's lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct GateState(pub u64);

impl GateState {
    /// Creates a state without requests.
    pub(super) fn new(capacity: u32) -> Self {
        Self(u64::from(capacity.min(UNLIMITED)) << 32)
    }

    /// Returns the admitted requests.
    pub(super) fn admitted_count(self) -> u32 {
        self.0 as u32
    }

    /// Returns the maximum number of admitted requests.
    pub(super) fn capacity(self) -> u32 {
        (self.0 >> 32) as u32 & UNLIMITED
    }

    /// Returns whether changes need the queue's lock.
    pub(super) fn is_contended(self) -> bool {
        self.0 & CONTENDED_BIT != 0
    }

    /// Returns whether one more request may be admitted.
    pub(super) fn has_capacity(self) -> bool {
        self.admitted_count() < self.capacity()
    }

    /// Returns whether fewer than half of the places are taken.
    pub(super) fn is_below_half(self) -> bool {
        self.admitted_count() < self.capacity() / 2
    }

    /// Admits one request to a function without a limit, unless requests wait: then the queue decides.
    pub(super) fn with_uncounted_entry(self) -> Option<Self> {
        // Without the first test, a new request could overtake those that wait.
        (!self.is_contended() && self.capacity() == UNLIMITED).then(|| self.plus_admitted(1))
    }

    /// Releases one request, unless requests wait: then the queue decides.
    pub(super) fn with_exit(self) -> Option<Self> {
        // With waiting requests, the release has to admit the next one, which needs the queue.
        (!self.is_contended()).then(|| self.minus_admitted(1))
    }

    /// Adds `n` admitted requests.
    pub(super) fn plus_admitted(self, n: u32) -> Self {
        Self(self.0 + u64::from(n))
    }

    /// Removes `n` admitted requests.
    pub(super) fn minus_admitted(self, n: u32) -> Self {
        debug_assert!(self.admitted_count() >= n, "more left than came");
        Self(self.0 - u64::from(n))
    }

    /// Returns the state with another capacity. The count may exceed it until requests end.
    pub(super) fn with_capacity(self, capacity: u32) -> Self {
        let other_bits = self.0 & (CONTENDED_BIT | u64::from(u32::MAX));
        Self(other_bits | u64::from(capacity.min(UNLIMITED)) << 32)
    }

    /// Sets or clears the contended bit.
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
        fn each_field_keeps_its_value(capacity in 0u32..=UNLIMITED, inside in 0u32..1_000_000, other in 0u32..=UNLIMITED) {
            let state = GateState::new(capacity).plus_admitted(inside).with_contended(true);
            prop_assert_eq!((state.admitted_count(), state.capacity(), state.is_contended()), (inside, capacity, true));
            let state = state.with_capacity(other).with_contended(false).minus_admitted(inside);
            prop_assert_eq!((state.admitted_count(), state.capacity(), state.is_contended()), (0, other, false));
        }

        #[test]
        fn no_request_overtakes_waiting_ones(capacity in 1u32..100, inside in 0u32..100) {
            let state = GateState::new(capacity).plus_admitted(inside);
            prop_assert_eq!(state.has_capacity(), inside < capacity);
            prop_assert_eq!(state.with_uncounted_entry(), None, "its sources are counted");
            let unlimited = state.with_capacity(UNLIMITED);
            prop_assert_eq!(unlimited.with_contended(true).with_uncounted_entry(), None);
            prop_assert!(unlimited.with_uncounted_entry().is_some());
        }

        #[test]
        fn requests_with_arriving_bodies_leave_half_of_the_places(capacity in 0u32..100) {
            let next = |state: &GateState| state.is_below_half().then(|| state.plus_admitted(1));
            let states = std::iter::successors(Some(GateState::new(capacity)), next);
            prop_assert_eq!(states.last().unwrap().admitted_count(), capacity / 2);
        }
    }
}
