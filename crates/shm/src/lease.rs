//! Ownership of a slot as a value: dropping it releases the slot.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::descriptor::{Descriptor, Slot};
use crate::member::Member;
use crate::word::{Party, Step, Word};

/// A slot that this party holds.
#[derive(Debug)]
pub struct Lease {
    inner: Inner,
}

impl Lease {
    pub(crate) fn new(member: Arc<Member>, slot: Slot, size: u32, generation: u32) -> Self {
        Self { inner: Inner { member, slot, size, generation } }
    }

    /// Bytes of the slot.
    pub fn size(&self) -> u32 {
        self.inner.size
    }

    /// Which slot.
    pub fn slot(&self) -> Slot {
        self.inner.slot
    }

    /// Of this claim.
    pub fn generation(&self) -> u32 {
        self.inner.generation
    }

    /// The party that holds it.
    pub fn member(&self) -> &Arc<Member> {
        &self.inner.member
    }

    /// Copies bytes in; false, and nothing copied, when they would end outside the slot.
    pub fn write(&mut self, offset: u32, bytes: &[u8]) -> bool {
        self.inner.member.pool().write(self.inner.slot, offset, bytes)
    }

    /// Writes zeros; false, and nothing written, when they would end outside the slot.
    pub fn clear(&mut self, offset: u32, bytes: u32) -> bool {
        let Some(place) = self.place(offset, bytes as usize) else { return false };
        // SAFETY: within the slot, whose pool this party has mapped for writing: it claimed or accepted the slot there.
        unsafe { std::ptr::write_bytes(place.as_ptr(), 0, bytes as usize) };
        true
    }

    /// Copies bytes out; false, and nothing copied, when they would lie outside the slot.
    pub fn read(&self, offset: u32, into: &mut [u8]) -> bool {
        self.inner.member.pool().read(self.inner.slot, offset, into)
    }

    /// Where bytes of the slot lie, valid while the lease lives. A party that breaks the rules can change them at any time.
    pub fn place(&self, offset: u32, bytes: usize) -> Option<NonNull<u8>> {
        self.inner.member.pool().place(self.inner.slot, offset, bytes)
    }

    /// Names the next holder. Push the descriptor, then say [`Offer::sent`]; else dropping the offer frees the slot.
    pub fn offer(self, to: Party) -> Result<Offer, Lost> {
        let (by, inner) = (self.inner.member.party(), &self.inner);
        inner.member.step(inner.slot, Word::held(inner.generation, by), Step::Offer { by, to }).ok_or(Lost)?;
        Ok(Offer { inner: self.into_inner(), to })
    }

    fn into_inner(self) -> Inner {
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: `this` is never dropped nor used again, so the value is moved out exactly once.
        unsafe { std::ptr::read(&this.inner) }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let Inner { member, slot, size, generation } = &self.inner;
        let by = member.party();
        // When it fails the node has taken the slot: it believed this party dead.
        let _ = member.step(*slot, Word::held(*generation, by), Step::Release { by });
        member.warm(*slot);
        member.discharge(*size);
    }
}

/// A slot on its way to another party.
#[derive(Debug)]
pub struct Offer {
    inner: Inner,
    to: Party,
}

impl Offer {
    /// What to push: `length` bytes at `offset`.
    pub fn descriptor(&self, offset: u32, length: u32) -> Descriptor {
        Descriptor { slot: self.inner.slot, generation: self.inner.generation, offset, length }
    }

    /// It was pushed: the slot is no longer this party's business.
    pub fn sent(self) {
        self.into_inner().discharge();
    }

    /// It was not pushed: the slot stays this party's.
    pub fn take_back(self) -> Result<Lease, Lost> {
        let (by, to) = (self.inner.member.party(), self.to);
        let inner = self.into_inner();
        match inner.member.step(inner.slot, Word::offered(inner.generation, by, to), Step::TakeBack { by, to }) {
            Some(_) => Ok(Lease { inner }),
            None => {
                inner.discharge();
                Err(Lost)
            }
        }
    }

    fn into_inner(self) -> Inner {
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: `this` is never dropped nor used again, so the value is moved out exactly once.
        unsafe { std::ptr::read(&this.inner) }
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        let Inner { member, slot, size, generation } = &self.inner;
        member.recall(&Descriptor { slot: *slot, generation: *generation, offset: 0, length: 0 }, self.to);
        member.discharge(*size);
    }
}

/// What a lease and an offer are made of.
#[derive(Debug)]
struct Inner {
    member: Arc<Member>,
    slot: Slot,
    size: u32,
    generation: u32,
}

impl Inner {
    fn discharge(&self) {
        self.member.discharge(self.size);
    }
}

/// The slot is no longer this party's: the node took it, or somebody in the domain broke the rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the slot is no longer held by this party")]
pub struct Lost;
