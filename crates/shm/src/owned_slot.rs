//! A body in a held slot, with space before it for an envelope and a head: it is sent in place.
//!
//! Either the function writes the body there before its head is known, or it forwards a received
//! one. Sending consumes the value: safe code cannot write while the receiver reads. Dropping it
//! releases the slot.

use std::sync::Arc;

use crate::endpoint::{ClaimError, PoolEndpoint};
use crate::envelope::{self, Envelope, MAX_HEAD_BYTES};
use crate::head::HeadError;
use crate::lease::Lease;
use crate::message::{DraftError, MessageDraft, OutgoingMessage, ReceivedMessage};

/// Space before a body that is written first: an envelope and a typical head.
/// A multiple of a cache line, so that the body starts at one.
pub const HEADROOM_BYTES: u32 = 256;

/// A body in place; see the module documentation.
#[derive(Debug)]
pub struct OwnedSlot {
    /// None only while the value is consumed or dropped.
    lease: Option<Lease>,
    body_offset: u32,
    length: u32,
}

impl OwnedSlot {
    /// Claims a zeroed body, to be written. Zeroing hides earlier content of the slot.
    pub fn claim_zeroed(member: &Arc<PoolEndpoint>, bytes: u32) -> Result<Self, ClaimError> {
        let all = HEADROOM_BYTES
            .checked_add(bytes)
            .ok_or(ClaimError::TooLarge)?;
        let mut lease = member.claim_slot(all)?;
        lease.clear_bytes(HEADROOM_BYTES, bytes);
        Ok(Self::new(lease, HEADROOM_BYTES, bytes))
    }

    /// Wraps the `length` bytes at `at`, which lie within the slot.
    pub(crate) fn new(lease: Lease, at: u32, length: u32) -> Self {
        debug_assert!(
            lease.byte_ptr(at, length as usize).is_some(),
            "outside the slot"
        );
        Self {
            lease: Some(lease),
            body_offset: at,
            length,
        }
    }

    /// Returns the body. As with [`crate::MessagePayload`], a faulty endpoint of the domain can
    /// change it meanwhile.
    pub fn bytes(&self) -> &[u8] {
        let place = self
            .lease
            .as_ref()
            .and_then(|lease| lease.byte_ptr(self.body_offset, self.length as usize));
        let Some(place) = place else { return &[] };
        // SAFETY: within the slot, and the lease is held while the slice lives: no correct endpoint
        // writes there, and `&self` excludes this one. The bytes are plain data: a faulty endpoint
        // changes values only.
        unsafe { std::slice::from_raw_parts(place.as_ptr(), self.length as usize) }
    }

    /// Returns the body for writing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let place = self
            .lease
            .as_ref()
            .and_then(|lease| lease.byte_ptr(self.body_offset, self.length as usize));
        let Some(place) = place else { return &mut [] };
        // SAFETY: as above; `&mut self` excludes other readers in this process. The pool is mapped
        // writable, because the slot was claimed or accepted there.
        unsafe { std::slice::from_raw_parts_mut(place.as_ptr(), self.length as usize) }
    }

    /// Returns true if this endpoint holds the slot: no other endpoint can send it.
    pub fn is_held_by(&self, member: &Arc<PoolEndpoint>) -> bool {
        self.lease
            .as_ref()
            .is_some_and(|lease| Arc::ptr_eq(lease.endpoint(), member))
    }

    /// Truncates the body; no effect when it is not longer.
    pub fn truncate(&mut self, bytes: u32) {
        self.length = self.length.min(bytes);
    }

    /// Writes the head before the body; only the envelope is missing then.
    /// Returns the slot when the head is invalid, or has no room there.
    pub fn into_draft(
        mut self,
        fields: &[(&str, &[u8])],
    ) -> Result<MessageDraft, (Self, DraftError)> {
        let head: usize = fields
            .iter()
            .map(|(name, value)| 4 + name.len() + value.len())
            .sum();
        let Some(head) = u32::try_from(head)
            .ok()
            .filter(|head| *head <= MAX_HEAD_BYTES)
        else {
            return Err((self, HeadError::TooMany.into()));
        };
        // Head and envelope go right before the body, which stays where it is (ADR 0020).
        let start = self
            .body_offset
            .checked_sub(envelope::body_offset(head))
            .filter(|start| start.is_multiple_of(8));
        // The lease leaves `self` only when the head fits: otherwise the caller gets the body back.
        let (Some(start), Some(lease)) = (start, self.lease.take_if(|_| start.is_some())) else {
            return Err((self, DraftError::SlotFull));
        };
        let mut draft = MessageDraft::with_start(lease, start);
        let written = fields
            .iter()
            .try_for_each(|(name, value)| draft.add_field(name, value));
        match written.and_then(|()| draft.grow_body(self.length)) {
            Ok(()) => Ok(draft),
            Err(why) => Err((
                Self::new(draft.into_lease(), self.body_offset, self.length),
                why,
            )),
        }
    }
}

impl Drop for OwnedSlot {
    /// Clears an unsent body: in a strict domain peers can read the pool.
    fn drop(&mut self) {
        if let Some(lease) = self
            .lease
            .as_mut()
            .filter(|lease| lease.endpoint().pool().is_strict())
        {
            lease.clear_bytes(self.body_offset, self.length);
        }
    }
}

impl AsRef<[u8]> for OwnedSlot {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

impl OutgoingMessage {
    /// Returns the body of a message that was not sent.
    pub fn into_owned_slot(self) -> Option<OwnedSlot> {
        let mut copy = [0; envelope::ENVELOPE_BYTES];
        self.lease.read_bytes(self.offset, &mut copy);
        let envelope = Envelope::from_bytes(&copy, self.length).ok()?;
        Some(OwnedSlot::new(
            self.lease,
            self.offset + envelope.body_offset(),
            envelope.body,
        ))
    }
}

impl ReceivedMessage {
    /// Returns the body in place, to be forwarded; none for a private copy.
    pub fn into_owned_slot(self) -> Option<OwnedSlot> {
        let (at, length) = (self.body_offset(), self.envelope().body);
        self.into_lease()
            .map(|lease| OwnedSlot::new(lease, at, length))
    }
}
