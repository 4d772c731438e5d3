//! What the node does after a death: gives slots back, and counts who holds what.
//!
//! In this order: close the channels of the dead, ring their peers, sweep. A peer that offers a slot to the dead meanwhile sees
//! the closed channel after its fence and takes the slot back. Sweep again when the peers have let go of the channels: a
//! number is given again only when no word bears it.

use std::collections::BTreeMap;

use crate::descriptor::Slot;
use crate::pool::Pool;
use crate::word::{Party, Step, Word};

/// What a sweep did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Swept {
    /// Slots that are free again.
    pub freed: u32,
    /// Slots that a dead party sent, on their way to one that lives.
    pub underway: u32,
    /// Hints of free slots that were missing.
    pub hints: u32,
}

/// Frees what nobody alive holds or will take. `alive` knows the parties that are running: any other number counts as dead.
/// `in_ring` says whether the slot with this generation lies in the ring from the first party to the second.
pub fn sweep(pool: &Pool, alive: impl Fn(Party) -> bool, in_ring: impl Fn(Party, Party, Slot, u32) -> bool) -> Swept {
    let mut swept = Swept::default();
    for (class, (_, leases)) in pool.classes().enumerate() {
        for index in 0..leases.count() {
            let Some(word) = leases.word(index) else { continue };
            match fate(word, &alive, |from, to| in_ring(from, to, Slot::new(class, index), word.generation())) {
                Fate::Stays => {}
                Fate::Underway => swept.underway += 1,
                Fate::Ends => swept.freed += u32::from(leases.step(index, word, Step::Reclaim).is_some()),
            }
        }
        swept.hints += leases.restore_hints();
    }
    swept
}

/// What becomes of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Free, or in the hands of the living.
    Stays,
    /// From the dead to the living: they will take it.
    Underway,
    /// Nobody will do anything with it.
    Ends,
}

/// Decides about one word. Pure.
pub fn fate(word: Word, alive: impl Fn(Party) -> bool, in_ring: impl Fn(Party, Party) -> bool) -> Fate {
    match (word.from(), word.holder()) {
        (None, None) => Fate::Stays,
        (Some(_), None) => Fate::Ends, // against the rules: no step leads there or away
        (_, Some(holder)) if !alive(holder) => Fate::Ends,
        (Some(from), Some(holder)) if !alive(from) => {
            if in_ring(from, holder) {
                Fate::Underway
            } else {
                Fate::Ends
            }
        }
        _ => Fate::Stays,
    }
}

/// What one party holds, counted from the words.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Slots that it holds or is handing over.
    pub slots: u32,
    /// Bytes of these slots.
    pub bytes: u64,
}

/// What every party holds. A slot underway counts for who hands it over, until it is taken.
pub fn usage(pool: &Pool) -> BTreeMap<Party, Usage> {
    let mut usage: BTreeMap<Party, Usage> = BTreeMap::new();
    for (size, leases) in pool.classes() {
        let words = (0..leases.count()).filter_map(|index| leases.word(index));
        for party in words.filter_map(|word| word.from().or(word.holder())) {
            let usage = usage.entry(party).or_default();
            usage.slots += 1;
            usage.bytes += u64::from(size);
        }
    }
    usage
}

/// Whether any word bears the number.
pub fn bears(pool: &Pool, party: Party) -> bool {
    let borne = |word: Word| word.from() == Some(party) || word.holder() == Some(party);
    pool.classes().any(|(_, leases)| (0..leases.count()).filter_map(|index| leases.word(index)).any(borne))
}
