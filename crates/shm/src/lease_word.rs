//! The lease word: holder of a slot, in 64 bits. Pure; [`crate::lease_table`] applies it to shared
//! memory.

use std::num::NonZeroU16;

/// Id of a thread that sends and receives in a domain, assigned by the node. It is not reused while
/// a word contains it.
pub type EndpointId = NonZeroU16;

/// `generation` in bits 63–32, `from` in 31–16, `holder` in 15–0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct LeaseWord(pub u64);

impl LeaseWord {
    /// Returns the word of a slot that is free since this generation.
    pub const fn free(generation: u32) -> Self {
        Self((generation as u64) << 32)
    }

    /// Returns the word of a slot that one endpoint holds.
    pub const fn held(generation: u32, by: EndpointId) -> Self {
        Self((generation as u64) << 32 | by.get() as u64)
    }

    /// Returns the word of a slot that one endpoint offers to another.
    pub const fn offered(generation: u32, from: EndpointId, to: EndpointId) -> Self {
        Self((generation as u64) << 32 | (from.get() as u64) << 16 | to.get() as u64)
    }

    /// Returns the generation; it increases with each claim.
    pub const fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Returns the endpoint that offers the slot.
    pub const fn offered_by(self) -> Option<EndpointId> {
        EndpointId::new((self.0 >> 16) as u16)
    }

    /// Returns the endpoint that holds the slot, or will accept it.
    pub const fn held_by(self) -> Option<EndpointId> {
        EndpointId::new(self.0 as u16)
    }

    /// Returns true if the slot may be claimed. A word with `from` but no `holder` violates the
    /// protocol and counts as held.
    pub const fn is_free(self) -> bool {
        self.0 as u32 == 0
    }

    /// Returns the word after a transition, or none when the transition is not allowed.
    pub const fn apply_transition(self, step: LeaseTransition) -> Option<Self> {
        let generation = self.generation();
        let (before, after) = match step {
            LeaseTransition::Claim { by } => (
                Self::free(generation),
                Self::held(next_generation(generation), by),
            ),
            LeaseTransition::Offer { by, to } => (
                Self::held(generation, by),
                Self::offered(generation, by, to),
            ),
            LeaseTransition::Accept { from, by } => (
                Self::offered(generation, from, by),
                Self::held(generation, by),
            ),
            LeaseTransition::TakeBack { by, to } => (
                Self::offered(generation, by, to),
                Self::held(generation, by),
            ),
            LeaseTransition::Release { by } => (Self::held(generation, by), Self::free(generation)),
            // From any word: the node decided before that the holder cannot use the slot any more.
            LeaseTransition::Reclaim => (self, Self::free(generation)),
        };
        // Whole words are compared: generation, sender and holder must all match.
        if self.0 == before.0 {
            Some(after)
        } else {
            None
        }
    }
}

/// Transition of a lease word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseTransition {
    /// A free slot becomes held, with a new generation.
    Claim {
        /// The new holder.
        by: EndpointId,
    },
    /// The holder names the receiver, before it pushes the descriptor.
    Offer {
        /// The holder.
        by: EndpointId,
        /// The receiver.
        to: EndpointId,
    },
    /// The receiver accepts the slot, after it popped the descriptor.
    Accept {
        /// The offering endpoint.
        from: EndpointId,
        /// The new holder.
        by: EndpointId,
    },
    /// The holder takes an offer back: the push failed, or the consumer is dead.
    TakeBack {
        /// The offering endpoint.
        by: EndpointId,
        /// The intended receiver.
        to: EndpointId,
    },
    /// The holder frees the slot.
    Release {
        /// The holder.
        by: EndpointId,
    },
    /// The node frees a slot of a dead endpoint.
    Reclaim,
}

/// Returns the generation after `generation`: one more, and never 0.
pub const fn next_generation(generation: u32) -> u32 {
    match generation.wrapping_add(1) {
        // 0 is reserved: a descriptor of generation 0 is a wakeup record.
        0 => 1,
        next => next,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn endpoint_id() -> impl Strategy<Value = EndpointId> {
        (1..=u16::MAX).prop_map(|number| EndpointId::new(number).unwrap())
    }

    fn transition() -> impl Strategy<Value = LeaseTransition> {
        prop_oneof![
            endpoint_id().prop_map(|by| LeaseTransition::Claim { by }),
            (endpoint_id(), endpoint_id()).prop_map(|(by, to)| LeaseTransition::Offer { by, to }),
            (endpoint_id(), endpoint_id())
                .prop_map(|(from, by)| LeaseTransition::Accept { from, by }),
            (endpoint_id(), endpoint_id())
                .prop_map(|(by, to)| LeaseTransition::TakeBack { by, to }),
            endpoint_id().prop_map(|by| LeaseTransition::Release { by }),
        ]
    }

    #[test]
    fn a_slot_passes_from_claim_to_release() {
        let [p, q] = [7, 9].map(|number| EndpointId::new(number).unwrap());
        let word = LeaseWord::free(u32::MAX)
            .apply_transition(LeaseTransition::Claim { by: p })
            .unwrap();
        assert_eq!(word, LeaseWord::held(1, p), "the generation skips 0");
        let word = word
            .apply_transition(LeaseTransition::Offer { by: p, to: q })
            .unwrap();
        assert_eq!((word.offered_by(), word.held_by()), (Some(p), Some(q)));
        assert_eq!(
            word.apply_transition(LeaseTransition::Release { by: q }),
            None,
            "not yet q's"
        );
        assert_eq!(
            word.apply_transition(LeaseTransition::Accept { from: q, by: q }),
            None,
            "not from q"
        );
        let word = word
            .apply_transition(LeaseTransition::Accept { from: p, by: q })
            .unwrap();
        assert_eq!(
            word.apply_transition(LeaseTransition::Release { by: p }),
            None,
            "no longer p's"
        );
        assert_eq!(
            word.apply_transition(LeaseTransition::Release { by: q }),
            Some(LeaseWord::free(1))
        );
    }

    proptest! {
        #[test]
        fn a_transition_needs_the_endpoint_that_the_word_names(word: u64, step in transition()) {
            let word = LeaseWord(word);
            let Some(after) = word.apply_transition(step) else { return Ok(()) };
            let claim = matches!(step, LeaseTransition::Claim { .. });
            prop_assert_eq!(after.generation(), if claim { next_generation(word.generation()) } else { word.generation() });
            match step {
                LeaseTransition::Claim { by } => prop_assert!(word.is_free() && after == LeaseWord::held(after.generation(), by)),
                LeaseTransition::Offer { by, to } => prop_assert!(word.held_by() == Some(by) && after.held_by() == Some(to)),
                LeaseTransition::Accept { from, by } => prop_assert!(word.offered_by() == Some(from) && after.held_by() == Some(by)),
                LeaseTransition::TakeBack { by, .. } => prop_assert!(word.offered_by() == Some(by) && after.held_by() == Some(by)),
                LeaseTransition::Release { by } => prop_assert!(word.held_by() == Some(by) && word.offered_by().is_none() && after.is_free()),
                LeaseTransition::Reclaim => {}
            }
        }
    }
}
