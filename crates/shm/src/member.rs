//! One party of a pool: its number, and what it holds against its bound.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::descriptor::{BadDescriptor, Descriptor, Slot};
use crate::geometry::MAX_CLASSES;
use crate::lease::Lease;
use crate::pool::Pool;
use crate::word::{Party, Step, Word};

/// A thread that sends and receives in a domain. Its leases keep it alive and may be dropped on any thread.
#[derive(Debug)]
pub struct Member {
    pool: Arc<Pool>,
    party: Party,
    bound: u64,
    held: AtomicU64,
    /// Where each class was last claimed or released: those slots are warm in the cache.
    near: [AtomicU32; MAX_CLASSES],
}

impl Member {
    /// `bound` is the most bytes of slots that it may hold when it claims another one.
    pub fn new(pool: Arc<Pool>, party: Party, bound: u64) -> Arc<Self> {
        Arc::new(Self { pool, party, bound, held: AtomicU64::new(0), near: Default::default() })
    }

    /// Its number in the domain.
    pub fn party(&self) -> Party {
        self.party
    }

    /// The pool.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Bytes of the slots that it holds.
    pub fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// Takes a free slot of at least `bytes` bytes: of the smallest class that has one.
    pub fn claim(self: &Arc<Self>, bytes: u32) -> Result<Lease, NotClaimed> {
        let first = self.pool.geometry().class_for(bytes).ok_or(NotClaimed::TooLarge)?;
        for (class, (size, leases)) in self.pool.classes().enumerate().skip(first) {
            if self.held() + u64::from(size) > self.bound {
                return Err(NotClaimed::Bound);
            }
            if let Some((index, generation)) = leases.claim(self.party, self.near[class].load(Ordering::Relaxed)) {
                self.near[class].store(index, Ordering::Relaxed);
                self.charge(size);
                return Ok(Lease::new(Arc::clone(self), Slot::new(class, index), size, generation));
            }
        }
        Err(NotClaimed::Exhausted)
    }

    /// Takes what `from` offered, after all checks. Nobody else can take it then, nor `from` touch it by the rules.
    pub fn accept(self: &Arc<Self>, descriptor: &Descriptor, from: Party) -> Result<Lease, NotAccepted> {
        self.pool.check(descriptor)?;
        let Descriptor { slot, generation, .. } = *descriptor;
        let offered = Word::offered(generation, from, self.party);
        self.step(slot, offered, Step::Accept { from, by: self.party }).ok_or(NotAccepted::NotOffered)?;
        let size = self.pool.geometry().slot_size(slot).ok_or(BadDescriptor::NoSuchSlot)?;
        self.charge(size);
        Ok(Lease::new(Arc::clone(self), slot, size, generation))
    }

    /// Frees what was offered to `to` but will not be taken; false when it was taken, or freed by the node.
    pub(crate) fn recall(&self, descriptor: &Descriptor, to: Party) -> bool {
        let Descriptor { slot, generation, .. } = *descriptor;
        let offered = Word::offered(generation, self.party, to);
        let held = self.step(slot, offered, Step::TakeBack { by: self.party, to });
        held.and_then(|held| self.step(slot, held, Step::Release { by: self.party })).is_some()
    }

    /// Whether a slot is still in the life that this party gave it: offered, or held by who took it. False: it was let go.
    pub fn outlives(&self, slot: Slot, generation: u32) -> bool {
        let word = self.pool.class(slot.class()).and_then(|class| class.word(slot.index()));
        word.is_some_and(|word| word.generation() == generation && !word.is_free())
    }

    pub(crate) fn step(&self, slot: Slot, before: Word, step: Step) -> Option<Word> {
        self.pool.class(slot.class())?.step(slot.index(), before, step)
    }

    pub(crate) fn charge(&self, bytes: u32) {
        self.held.fetch_add(u64::from(bytes), Ordering::Relaxed);
    }

    pub(crate) fn discharge(&self, bytes: u32) {
        self.held.fetch_sub(u64::from(bytes), Ordering::Relaxed);
    }

    pub(crate) fn warm(&self, slot: Slot) {
        self.near[slot.class()].store(slot.index(), Ordering::Relaxed);
    }
}

/// Why there is no slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotClaimed {
    /// No class is that large: send it in parts.
    #[error("the message is larger than the pool's largest slot")]
    TooLarge,
    /// The party holds as much as it may: it has to release something first.
    #[error("the party holds as many bytes as it may")]
    Bound,
    /// All slots that are large enough are taken.
    #[error("the pool has no free slot of that size")]
    Exhausted,
}

/// Why a descriptor was refused; the sender is at fault or hostile, or the node has reclaimed the slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotAccepted {
    /// It cannot be a message of this pool.
    #[error(transparent)]
    Bad(#[from] BadDescriptor),
    /// Forged, stolen, or from an earlier life of the slot.
    #[error("the slot was not offered to this party by this sender")]
    NotOffered,
}
