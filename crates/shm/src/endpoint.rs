//! Endpoint of a pool: its id, and the bytes it holds against its limit.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::descriptor::{Descriptor, DescriptorError, SlotId};
use crate::geometry::MAX_CLASSES;
use crate::lease::Lease;
use crate::lease_word::{EndpointId, LeaseTransition, LeaseWord};
use crate::pool::SlotPool;

/// A thread that sends and receives in a domain. Its leases keep it alive and may be dropped on any
/// thread.
#[derive(Debug)]
pub struct PoolEndpoint {
    pool: Arc<SlotPool>,
    id: EndpointId,
    max_held_bytes: u64,
    held_bytes: AtomicU64,
    /// Slot last claimed or released per class: its cache lines are likely still warm.
    last_used: [AtomicU32; MAX_CLASSES],
}

impl PoolEndpoint {
    /// Creates an endpoint. A claim that would exceed `bound` held bytes fails.
    pub fn new(pool: Arc<SlotPool>, endpoint: EndpointId, bound: u64) -> Arc<Self> {
        Arc::new(Self {
            pool,
            id: endpoint,
            max_held_bytes: bound,
            held_bytes: AtomicU64::new(0),
            last_used: Default::default(),
        })
    }

    /// Returns the id in the domain.
    pub fn id(&self) -> EndpointId {
        self.id
    }

    /// Returns the pool.
    pub fn pool(&self) -> &SlotPool {
        &self.pool
    }

    /// Returns the bytes of all held slots.
    pub fn held_bytes(&self) -> u64 {
        // Relaxed: the sum guards a limit and no memory. A stale value only delays or refuses a
        // claim.
        self.held_bytes.load(Ordering::Relaxed)
    }

    /// Claims a free slot of at least `bytes` bytes, from the smallest class that has one.
    pub fn claim_slot(self: &Arc<Self>, bytes: u32) -> Result<Lease, ClaimError> {
        let first = self
            .pool
            .geometry()
            .class_for(bytes)
            .ok_or(ClaimError::TooLarge)?;
        // Falls back to larger classes: unused bytes cost less than a refused claim.
        for (class, (size, leases)) in self.pool.lease_tables().enumerate().skip(first) {
            if self.held_bytes() + u64::from(size) > self.max_held_bytes {
                return Err(ClaimError::Bound);
            }
            if let Some((index, generation)) =
                leases.claim_slot(self.id, self.last_used[class].load(Ordering::Relaxed))
            {
                self.last_used[class].store(index, Ordering::Relaxed);
                self.add_held(size);
                return Ok(Lease::new(
                    Arc::clone(self),
                    SlotId::new(class, index),
                    size,
                    generation,
                ));
            }
        }
        Err(ClaimError::Exhausted)
    }

    /// Accepts the slot that `from` offered, after all checks. No other endpoint can accept it
    /// afterwards.
    pub fn accept_offer(
        self: &Arc<Self>,
        descriptor: &Descriptor,
        from: EndpointId,
    ) -> Result<Lease, AcceptOfferError> {
        self.pool.check_descriptor(descriptor)?;
        let Descriptor {
            slot, generation, ..
        } = *descriptor;
        // The expected word names sender, receiver and generation: one compare-and-swap refuses
        // forged, copied and outdated descriptors.
        let offered = LeaseWord::offered(generation, from, self.id);
        self.apply_transition(slot, offered, LeaseTransition::Accept { from, by: self.id })
            .ok_or(AcceptOfferError::NotOffered)?;
        let size = self
            .pool
            .geometry()
            .slot_size(slot)
            .ok_or(DescriptorError::NoSuchSlot)?;
        // Counted, but never refused: the limit applies to claims only (`contract/memory.md`).
        self.add_held(size);
        Ok(Lease::new(Arc::clone(self), slot, size, generation))
    }

    /// Frees a slot that was offered to `to` but not accepted. False when it was accepted, or freed
    /// by the node.
    pub(crate) fn recall_offer(&self, descriptor: &Descriptor, to: EndpointId) -> bool {
        let Descriptor {
            slot, generation, ..
        } = *descriptor;
        let offered = LeaseWord::offered(generation, self.id, to);
        // Two steps: the first one decides the race with the receiver and the node.
        let held =
            self.apply_transition(slot, offered, LeaseTransition::TakeBack { by: self.id, to });
        held.and_then(|held| {
            self.apply_transition(slot, held, LeaseTransition::Release { by: self.id })
        })
        .is_some()
    }

    /// Returns true while the slot still has the generation of this endpoint's message and is not
    /// free.
    pub fn is_slot_in_use(&self, slot: SlotId, generation: u32) -> bool {
        let word = self
            .pool
            .lease_table(slot.class())
            .and_then(|class| class.lease_word(slot.index()));
        word.is_some_and(|word| word.generation() == generation && !word.is_free())
    }

    pub(crate) fn apply_transition(
        &self,
        slot: SlotId,
        before: LeaseWord,
        step: LeaseTransition,
    ) -> Option<LeaseWord> {
        self.pool
            .lease_table(slot.class())?
            .apply_transition(slot.index(), before, step)
    }

    pub(crate) fn add_held(&self, bytes: u32) {
        self.held_bytes
            .fetch_add(u64::from(bytes), Ordering::Relaxed);
    }

    pub(crate) fn subtract_held(&self, bytes: u32) {
        self.held_bytes
            .fetch_sub(u64::from(bytes), Ordering::Relaxed);
    }

    pub(crate) fn record_last_used(&self, slot: SlotId) {
        self.last_used[slot.class()].store(slot.index(), Ordering::Relaxed);
    }
}

/// Reason why no slot was claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    /// No class is that large: send the message in parts.
    #[error("the message is larger than the largest slot of the pool: send it in parts")]
    TooLarge,
    /// The endpoint reached its limit of held bytes: release a slot first.
    #[error("the endpoint already holds its maximum of bytes: release a slot first")]
    Bound,
    /// All slots that are large enough are in use.
    #[error("the pool has no free slot of that size")]
    Exhausted,
}

/// Reason why an offer was refused; the sender is faulty or hostile, or the node reclaimed the
/// slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AcceptOfferError {
    /// The descriptor cannot be a message of this pool.
    #[error(transparent)]
    Malformed(#[from] DescriptorError),
    /// The lease word does not record this offer: forged, copied, or of an earlier generation.
    #[error("the slot was not offered to this endpoint by this sender")]
    NotOffered,
}
