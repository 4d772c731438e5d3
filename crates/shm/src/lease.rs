//! Ownership of a slot as a value: dropping the value releases the slot.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::descriptor::{Descriptor, SlotId};
use crate::endpoint::PoolEndpoint;
use crate::lease_word::{EndpointId, LeaseTransition, LeaseWord};

/// A slot that this endpoint holds.
#[derive(Debug)]
pub struct Lease {
    inner: LeasedSlot,
}

impl Lease {
    pub(crate) fn new(member: Arc<PoolEndpoint>, slot: SlotId, size: u32, generation: u32) -> Self {
        Self {
            inner: LeasedSlot {
                endpoint: member,
                slot,
                size,
                generation,
            },
        }
    }

    /// Returns the bytes of the slot.
    pub fn slot_size(&self) -> u32 {
        self.inner.size
    }

    /// Returns the id of the slot.
    pub fn slot(&self) -> SlotId {
        self.inner.slot
    }

    /// Returns the generation of this claim.
    pub fn generation(&self) -> u32 {
        self.inner.generation
    }

    /// Returns the endpoint that holds the slot.
    pub fn endpoint(&self) -> &Arc<PoolEndpoint> {
        &self.inner.endpoint
    }

    /// Copies bytes in. False, and nothing copied, when they would end outside the slot.
    pub fn write_bytes(&mut self, offset: u32, bytes: &[u8]) -> bool {
        self.inner
            .endpoint
            .pool()
            .write_slot(self.inner.slot, offset, bytes)
    }

    /// Writes zeros. False, and nothing written, when they would end outside the slot.
    pub fn clear_bytes(&mut self, offset: u32, bytes: u32) -> bool {
        let Some(place) = self.byte_ptr(offset, bytes as usize) else {
            return false;
        };
        // SAFETY: within the slot, whose pool this endpoint has mapped for writing: it claimed or
        // accepted the slot there.
        unsafe { std::ptr::write_bytes(place.as_ptr(), 0, bytes as usize) };
        true
    }

    /// Copies bytes out. False, and nothing copied, when they would lie outside the slot.
    pub fn read_bytes(&self, offset: u32, into: &mut [u8]) -> bool {
        self.inner
            .endpoint
            .pool()
            .read_slot(self.inner.slot, offset, into)
    }

    /// Returns a pointer into the slot, valid while the lease lives. A faulty endpoint can change
    /// the bytes at any time.
    pub fn byte_ptr(&self, offset: u32, bytes: usize) -> Option<NonNull<u8>> {
        self.inner
            .endpoint
            .pool()
            .slot_ptr(self.inner.slot, offset, bytes)
    }

    /// Offers the slot to the next holder. Push the descriptor, then call
    /// [`LeaseOffer::confirm_pushed`]; dropping the offer frees the slot.
    pub fn offer_to(self, to: EndpointId) -> Result<LeaseOffer, LeaseLost> {
        let (by, inner) = (self.inner.endpoint.id(), &self.inner);
        inner
            .endpoint
            .apply_transition(
                inner.slot,
                LeaseWord::held(inner.generation, by),
                LeaseTransition::Offer { by, to },
            )
            .ok_or(LeaseLost)?;
        // `into_inner` skips `Drop`, which would release the slot that was just offered.
        Ok(LeaseOffer {
            inner: self.into_inner(),
            receiver: to,
        })
    }

    fn into_inner(self) -> LeasedSlot {
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: `this` is never dropped nor used again, so the value is moved out exactly once.
        unsafe { std::ptr::read(&this.inner) }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let LeasedSlot {
            endpoint: member,
            slot,
            size,
            generation,
        } = &self.inner;
        let by = member.id();
        // It fails only when the node took the slot because it considered this endpoint dead.
        let _ = member.apply_transition(
            *slot,
            LeaseWord::held(*generation, by),
            LeaseTransition::Release { by },
        );
        member.record_last_used(*slot);
        member.subtract_held(*size);
    }
}

/// A slot that is offered to another endpoint.
#[derive(Debug)]
pub struct LeaseOffer {
    inner: LeasedSlot,
    receiver: EndpointId,
}

impl LeaseOffer {
    /// Returns the descriptor to push: `length` bytes at `offset`.
    pub fn descriptor(&self, offset: u32, length: u32) -> Descriptor {
        Descriptor {
            slot: self.inner.slot,
            generation: self.inner.generation,
            offset,
            length,
        }
    }

    /// Confirms the push: the slot now belongs to the receiver.
    pub fn confirm_pushed(self) {
        self.into_inner().subtract_held();
    }

    /// Takes the slot back after a failed push.
    pub fn take_back(self) -> Result<Lease, LeaseLost> {
        let (by, to) = (self.inner.endpoint.id(), self.receiver);
        let inner = self.into_inner();
        match inner.endpoint.apply_transition(
            inner.slot,
            LeaseWord::offered(inner.generation, by, to),
            LeaseTransition::TakeBack { by, to },
        ) {
            Some(_) => Ok(Lease { inner }),
            None => {
                // The receiver or the node was faster: the bytes are no longer this endpoint's.
                inner.subtract_held();
                Err(LeaseLost)
            }
        }
    }

    fn into_inner(self) -> LeasedSlot {
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: `this` is never dropped nor used again, so the value is moved out exactly once.
        unsafe { std::ptr::read(&this.inner) }
    }
}

impl Drop for LeaseOffer {
    fn drop(&mut self) {
        let LeasedSlot {
            endpoint: member,
            slot,
            size,
            generation,
        } = &self.inner;
        // No effect when the receiver or the node was faster: then the slot is theirs.
        member.recall_offer(
            &Descriptor {
                slot: *slot,
                generation: *generation,
                offset: 0,
                length: 0,
            },
            self.receiver,
        );
        member.subtract_held(*size);
    }
}

/// Fields that a lease and an offer share.
#[derive(Debug)]
struct LeasedSlot {
    endpoint: Arc<PoolEndpoint>,
    slot: SlotId,
    size: u32,
    generation: u32,
}

impl LeasedSlot {
    fn subtract_held(&self) {
        self.endpoint.subtract_held(self.size);
    }
}

/// The endpoint no longer holds the slot: the node took it, or an endpoint violated the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the slot is no longer held by this endpoint")]
pub struct LeaseLost;
