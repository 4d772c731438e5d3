//! The lease word: who may touch a slot, in 64 bits. Pure; [`crate::leases`] applies it to shared memory.

use std::num::NonZeroU16;

/// The number of a thread that sends and receives in a domain, given by the node. Not given again while a word bears it.
pub type Party = NonZeroU16;

/// `generation` in bits 63–32, `from` in 31–16, `holder` in 15–0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Word(pub u64);

impl Word {
    /// Free since the claim that had this generation.
    pub const fn free(generation: u32) -> Self {
        Self((generation as u64) << 32)
    }

    /// Held by one party.
    pub const fn held(generation: u32, by: Party) -> Self {
        Self((generation as u64) << 32 | by.get() as u64)
    }

    /// On its way from one party to another.
    pub const fn offered(generation: u32, from: Party, to: Party) -> Self {
        Self((generation as u64) << 32 | (from.get() as u64) << 16 | to.get() as u64)
    }

    /// Grows with each claim.
    pub const fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Who is handing the slot over.
    pub const fn from(self) -> Option<Party> {
        Party::new((self.0 >> 16) as u16)
    }

    /// Who holds the slot, or is about to.
    pub const fn holder(self) -> Option<Party> {
        Party::new(self.0 as u16)
    }

    /// Whether it may be claimed. A word with `from` but no `holder` never comes about by the rules and counts as taken.
    pub const fn is_free(self) -> bool {
        self.0 as u32 == 0
    }

    /// The word after a step, or nothing when the step is not allowed from here.
    pub const fn after(self, step: Step) -> Option<Self> {
        let generation = self.generation();
        let (before, after) = match step {
            Step::Claim { by } => (Self::free(generation), Self::held(next(generation), by)),
            Step::Offer { by, to } => (Self::held(generation, by), Self::offered(generation, by, to)),
            Step::Accept { from, by } => (Self::offered(generation, from, by), Self::held(generation, by)),
            Step::TakeBack { by, to } => (Self::offered(generation, by, to), Self::held(generation, by)),
            Step::Release { by } => (Self::held(generation, by), Self::free(generation)),
            Step::Reclaim => (self, Self::free(generation)),
        };
        if self.0 == before.0 { Some(after) } else { None }
    }
}

/// What can happen to a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// A free slot becomes `by`'s, with a new generation.
    Claim {
        /// The new holder.
        by: Party,
    },
    /// The holder names the next one, before it pushes the descriptor.
    Offer {
        /// The holder.
        by: Party,
        /// The next holder.
        to: Party,
    },
    /// The named one takes it, after it popped the descriptor.
    Accept {
        /// Who offered.
        from: Party,
        /// The new holder.
        by: Party,
    },
    /// The offer did not reach the ring, or lies in a ring whose consumer is dead.
    TakeBack {
        /// Who offered.
        by: Party,
        /// To whom.
        to: Party,
    },
    /// The holder is done.
    Release {
        /// The holder.
        by: Party,
    },
    /// The node frees what a dead party held.
    Reclaim,
}

/// The generation after `generation`: one more, and never 0.
pub const fn next(generation: u32) -> u32 {
    match generation.wrapping_add(1) {
        0 => 1,
        next => next,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn party() -> impl Strategy<Value = Party> {
        (1..=u16::MAX).prop_map(|number| Party::new(number).unwrap())
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            party().prop_map(|by| Step::Claim { by }),
            (party(), party()).prop_map(|(by, to)| Step::Offer { by, to }),
            (party(), party()).prop_map(|(from, by)| Step::Accept { from, by }),
            (party(), party()).prop_map(|(by, to)| Step::TakeBack { by, to }),
            party().prop_map(|by| Step::Release { by }),
        ]
    }

    #[test]
    fn a_slots_life() {
        let [p, q] = [7, 9].map(|number| Party::new(number).unwrap());
        let word = Word::free(u32::MAX).after(Step::Claim { by: p }).unwrap();
        assert_eq!(word, Word::held(1, p), "the generation skips 0");
        let word = word.after(Step::Offer { by: p, to: q }).unwrap();
        assert_eq!((word.from(), word.holder()), (Some(p), Some(q)));
        assert_eq!(word.after(Step::Release { by: q }), None, "not yet q's");
        assert_eq!(word.after(Step::Accept { from: q, by: q }), None, "not from q");
        let word = word.after(Step::Accept { from: p, by: q }).unwrap();
        assert_eq!(word.after(Step::Release { by: p }), None, "no longer p's");
        assert_eq!(word.after(Step::Release { by: q }), Some(Word::free(1)));
    }

    proptest! {
        #[test]
        fn a_step_needs_its_party(word: u64, step in step()) {
            let word = Word(word);
            let Some(after) = word.after(step) else { return Ok(()) };
            let claim = matches!(step, Step::Claim { .. });
            prop_assert_eq!(after.generation(), if claim { next(word.generation()) } else { word.generation() });
            match step {
                Step::Claim { by } => prop_assert!(word.is_free() && after == Word::held(after.generation(), by)),
                Step::Offer { by, to } => prop_assert!(word.holder() == Some(by) && after.holder() == Some(to)),
                Step::Accept { from, by } => prop_assert!(word.from() == Some(from) && after.holder() == Some(by)),
                Step::TakeBack { by, .. } => prop_assert!(word.from() == Some(by) && after.holder() == Some(by)),
                Step::Release { by } => prop_assert!(word.holder() == Some(by) && word.from().is_none() && after.is_free()),
                Step::Reclaim => {}
            }
        }
    }
}
