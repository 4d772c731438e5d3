//! Lease words and hints of one size class: [`crate::lease_word`] applied to memory that other
//! processes change concurrently.
//!
//! Each step is one compare-and-swap. So a process can die between two steps and leave a word that
//! names the holder. Hints only speed up the search: a stale hint costs one read, and the node
//! restores hints that a death lost.

use crate::lease_word::{EndpointId, LeaseTransition, LeaseWord};
use crate::shared::SharedRef;
use crate::sync::{AtomicU64, Ordering};

/// Words and hints of one class.
#[derive(Debug, Clone)]
pub struct LeaseTable {
    words: SharedRef<[AtomicU64]>,
    hints: SharedRef<[AtomicU64]>,
}

impl LeaseTable {
    /// Combines words with at least one hint bit per word.
    pub fn new(words: SharedRef<[AtomicU64]>, hints: SharedRef<[AtomicU64]>) -> Self {
        debug_assert!(hints.len() * 64 >= words.len(), "too few hints");
        Self { words, hints }
    }

    /// Creates an all-free table in private memory, for a strict endpoint's own pool and for tests.
    pub fn in_memory(count: usize) -> Self {
        let zeros = |n: usize| SharedRef::from_vec((0..n).map(|_| AtomicU64::new(0)).collect());
        let leases = Self::new(zeros(count), zeros(count.div_ceil(64)));
        leases.restore_hints();
        leases
    }

    /// Returns the number of slots.
    pub fn slot_count(&self) -> u32 {
        self.words.len() as u32
    }

    /// Returns the current word of a slot, if the slot exists.
    pub fn lease_word(&self, index: u32) -> Option<LeaseWord> {
        // Acquire: pairs with the AcqRel exchange in `apply_transition`.
        Some(LeaseWord(
            self.words.get(index as usize)?.load(Ordering::Acquire),
        ))
    }

    /// Claims a free slot and returns its index and new generation. The search begins at the hints
    /// around `near`.
    pub fn claim_slot(&self, by: EndpointId, near: u32) -> Option<(u32, u32)> {
        let groups = self.hints.len();
        let start = near as usize / 64 % groups;
        (start..groups)
            .chain(0..start)
            .find_map(|group| self.claim_in_group(by, group))
    }

    fn claim_in_group(&self, by: EndpointId, group: usize) -> Option<(u32, u32)> {
        let hint = &self.hints[group];
        // Relaxed: the lease word decides; a stale hint costs one failed exchange.
        let mut bits = hint.load(Ordering::Relaxed);
        while bits != 0 {
            let bit = bits & bits.wrapping_neg();
            // Cleared before the word is read: a later release sets the bit again, so no hint is
            // lost.
            let before = hint.fetch_and(!bit, Ordering::AcqRel);
            let index = (group * 64) as u32 + bit.trailing_zeros();
            if before & bit != 0
                && let Some(word) = self.lease_word(index)
                && let Some(after) =
                    self.apply_transition(index, word, LeaseTransition::Claim { by })
            {
                return Some((index, after.generation()));
            }
            // Keeps only bits that were set at the start: the loop ends even when others release
            // all the time.
            bits = before & bits & !bit;
        }
        None
    }

    /// Applies one transition to the word that the caller expects. Returns none when the transition
    /// is not allowed, or the word differs. The caller does not hold the slot then and must not
    /// touch it.
    pub fn apply_transition(
        &self,
        index: u32,
        before: LeaseWord,
        step: LeaseTransition,
    ) -> Option<LeaseWord> {
        let after = before.apply_transition(step)?;
        let word = self.words.get(index as usize)?;
        // AcqRel: the last holder's writes to the slot happen before the next holder's reads, also
        // across a reclaim.
        word.compare_exchange(before.0, after.0, Ordering::AcqRel, Ordering::Relaxed)
            .ok()?;
        // After the word: a claim could clear an earlier hint while it still sees the slot as held.
        if after.is_free() {
            self.set_hint(index);
        }
        Some(after)
    }

    /// Sets the hint of every free slot and returns how many were missing. Safe while others claim
    /// and release.
    pub fn restore_hints(&self) -> u32 {
        let missing = |&index: &u32| {
            let free = self.lease_word(index).is_some_and(LeaseWord::is_free);
            free && !self.set_hint(index)
        };
        (0..self.slot_count()).filter(missing).count() as u32
    }

    /// Sets the hint of a slot; returns true if it was set already.
    fn set_hint(&self, index: u32) -> bool {
        let bit = 1 << (index % 64);
        // Release: pairs with the AcqRel `fetch_and` of a claim, which then reads the freed word.
        self.hints[index as usize / 64].fetch_or(bit, Ordering::Release) & bit != 0
    }
}
