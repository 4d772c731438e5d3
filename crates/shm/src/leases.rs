//! The lease words and hints of one size class: [`crate::word`] applied to memory that others change at the same time.
//!
//! Each step is one compare-and-swap, so a process can die between any two of them and leave a word that says who held the
//! slot. Hints only speed up the search: a hint too many costs a look, and the node restores those that a death lost.

use crate::shared::Shared;
use crate::sync::{AtomicU64, Ordering};
use crate::word::{Party, Step, Word};

/// Words and hints of one class.
#[derive(Debug, Clone)]
pub struct Leases {
    words: Shared<[AtomicU64]>,
    hints: Shared<[AtomicU64]>,
}

impl Leases {
    /// `hints` has at least a bit for each word.
    pub fn new(words: Shared<[AtomicU64]>, hints: Shared<[AtomicU64]>) -> Self {
        debug_assert!(hints.len() * 64 >= words.len(), "too few hints");
        Self { words, hints }
    }

    /// All free, in private memory: those of a strict party's own pool, and of tests.
    pub fn in_memory(count: usize) -> Self {
        let zeros = |n: usize| Shared::own((0..n).map(|_| AtomicU64::new(0)).collect());
        let leases = Self::new(zeros(count), zeros(count.div_ceil(64)));
        leases.restore_hints();
        leases
    }

    /// Number of slots.
    pub fn count(&self) -> u32 {
        self.words.len() as u32
    }

    /// The word of a slot at this moment; nothing when there is no such slot.
    pub fn word(&self, index: u32) -> Option<Word> {
        Some(Word(self.words.get(index as usize)?.load(Ordering::Acquire)))
    }

    /// Takes a free slot: its index and new generation. The search begins at the hints around slot `near`.
    pub fn claim(&self, by: Party, near: u32) -> Option<(u32, u32)> {
        let groups = self.hints.len();
        let start = near as usize / 64 % groups;
        (start..groups).chain(0..start).find_map(|group| self.claim_in(by, group))
    }

    fn claim_in(&self, by: Party, group: usize) -> Option<(u32, u32)> {
        let hint = &self.hints[group];
        let mut bits = hint.load(Ordering::Relaxed);
        while bits != 0 {
            let bit = bits & bits.wrapping_neg();
            // Cleared before the word is looked at: who releases the slot later sets it again, so no hint gets lost.
            let before = hint.fetch_and(!bit, Ordering::AcqRel);
            let index = (group * 64) as u32 + bit.trailing_zeros();
            if before & bit != 0
                && let Some(word) = self.word(index)
                && let Some(after) = self.step(index, word, Step::Claim { by })
            {
                return Some((index, after.generation()));
            }
            bits = before & bits & !bit;
        }
        None
    }

    /// One step from the word that the caller believes in. Nothing when the step is not allowed from there or the word is
    /// another: then the slot is not, or no longer, the caller's, and it must leave it alone.
    pub fn step(&self, index: u32, before: Word, step: Step) -> Option<Word> {
        let after = before.after(step)?;
        let word = self.words.get(index as usize)?;
        // AcqRel: what the last holder wrote in the slot comes before what the next one reads, also over a reclaim.
        word.compare_exchange(before.0, after.0, Ordering::AcqRel, Ordering::Relaxed).ok()?;
        if after.is_free() {
            self.hint(index);
        }
        Some(after)
    }

    /// Sets the hint of every free slot; returns how many were missing. Harmless while others claim and release.
    pub fn restore_hints(&self) -> u32 {
        let missing = |&index: &u32| {
            let free = self.word(index).is_some_and(Word::is_free);
            free && !self.hint(index)
        };
        (0..self.count()).filter(missing).count() as u32
    }

    /// Says that a slot may be free; whether it was said already.
    fn hint(&self, index: u32) -> bool {
        let bit = 1 << (index % 64);
        self.hints[index as usize / 64].fetch_or(bit, Ordering::Release) & bit != 0
    }
}
