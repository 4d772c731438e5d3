//! A body in a slot that this party holds, with room before it for an envelope and a head: it goes out where it lies.
//!
//! Either somebody writes it there before its head is known, or it came with a message and goes on. Handing it over takes it:
//! nobody who kept to the types can still write when the receiver reads. Dropping it releases the slot.

use std::sync::Arc;

use crate::envelope::{self, MAX_HEAD};
use crate::head::BadHead;
use crate::lease::Lease;
use crate::member::{Member, NotClaimed};
use crate::message::{Draft, NotWritten};

/// Bytes that are left free before a body that is written first: an envelope, and the heads that most messages have. A
/// multiple of a cache line, so that the body begins at one.
pub const HEADROOM: u32 = 256;

/// See the module.
#[derive(Debug)]
pub struct Parcel {
    /// Nothing only while it is being handed over or dropped.
    lease: Option<Lease>,
    at: u32,
    length: u32,
}

impl Parcel {
    /// A body of so many zeros, to be written. What the slot held before is nobody's to see.
    pub fn claim(member: &Arc<Member>, bytes: u32) -> Result<Self, NotClaimed> {
        let all = HEADROOM.checked_add(bytes).ok_or(NotClaimed::TooLarge)?;
        let mut lease = member.claim(all)?;
        lease.clear(HEADROOM, bytes);
        Ok(Self::new(lease, HEADROOM, bytes))
    }

    /// The `length` bytes at `at`, which lie within the slot.
    pub(crate) fn new(lease: Lease, at: u32, length: u32) -> Self {
        debug_assert!(lease.place(at, length as usize).is_some(), "outside the slot");
        Self { lease: Some(lease), at, length }
    }

    /// The body where it lies. As with [`crate::Payload`], a party of the domain that breaks the rules can change it meanwhile.
    pub fn bytes(&self) -> &[u8] {
        let place = self.lease.as_ref().and_then(|lease| lease.place(self.at, self.length as usize));
        let Some(place) = place else { return &[] };
        // SAFETY: within the slot, whose lease is held while the slice lives: no party that keeps to the contract writes there,
        // and `&self` keeps this one from it. The bytes are plain: one that breaks the contract changes values alone.
        unsafe { std::slice::from_raw_parts(place.as_ptr(), self.length as usize) }
    }

    /// The body, to be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let place = self.lease.as_ref().and_then(|lease| lease.place(self.at, self.length as usize));
        let Some(place) = place else { return &mut [] };
        // SAFETY: as above, and `&mut self`: nobody else in this process looks. The pool is mapped for writing, because the slot
        // was claimed or accepted there.
        unsafe { std::slice::from_raw_parts_mut(place.as_ptr(), self.length as usize) }
    }

    /// Whether this party holds it: nobody else can hand it over.
    pub fn is_of(&self, member: &Arc<Member>) -> bool {
        self.lease.as_ref().is_some_and(|lease| Arc::ptr_eq(lease.member(), member))
    }

    /// Cuts the body; does nothing when it is not longer than that.
    pub fn truncate(&mut self, bytes: u32) {
        self.length = self.length.min(bytes);
    }

    /// Writes the head before the body: what is left is the envelope. The parcel comes back when its head has no room there, or
    /// is none.
    pub fn address(mut self, fields: &[(&str, &[u8])]) -> Result<Draft, (Self, NotWritten)> {
        let head: usize = fields.iter().map(|(name, value)| 4 + name.len() + value.len()).sum();
        let Some(head) = u32::try_from(head).ok().filter(|head| *head <= MAX_HEAD) else {
            return Err((self, BadHead::TooMany.into()));
        };
        let start = self.at.checked_sub(envelope::body_at(head)).filter(|start| start.is_multiple_of(8));
        let (Some(start), Some(lease)) = (start, self.lease.take_if(|_| start.is_some())) else {
            return Err((self, NotWritten::NoRoom));
        };
        let mut draft = Draft::at(lease, start);
        let written = fields.iter().try_for_each(|(name, value)| draft.field(name, value));
        match written.and_then(|()| draft.grow(self.length)) {
            Ok(()) => Ok(draft),
            Err(why) => Err((Self::new(draft.into_lease(), self.at, self.length), why)),
        }
    }
}

impl Drop for Parcel {
    /// In a strict domain peers can read the pool: what was not sent is not left there.
    fn drop(&mut self) {
        if let Some(lease) = self.lease.as_mut().filter(|lease| lease.member().pool().is_own()) {
            lease.clear(self.at, self.length);
        }
    }
}

impl AsRef<[u8]> for Parcel {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}
