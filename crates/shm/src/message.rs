//! Messages in slots: written once; readers copy first and check the copy.

use std::fmt;
use std::ptr::NonNull;

use crate::copies::count_copied;
use crate::descriptor::Descriptor;
use crate::envelope::{self, Envelope, EnvelopeError, flag};
use crate::head::{HeadError, HeadField, HeadFields, MAX_FIELDS};
use crate::lease::Lease;

/// A message under construction: first its head fields, then its body, then the envelope.
#[derive(Debug)]
pub struct MessageDraft {
    lease: Lease,
    start: u32,
    head: u32,
    fields: usize,
    body: u32,
}

impl MessageDraft {
    /// Starts a message in a held slot; earlier content is overwritten.
    pub fn new(lease: Lease) -> Self {
        Self::with_start(lease, 0)
    }

    /// Starts a message at byte `start`, a multiple of 8, so that a forwarder has room for a longer
    /// head.
    pub fn with_start(lease: Lease, start: u32) -> Self {
        debug_assert!(start.is_multiple_of(8), "not a descriptor's offset");
        Self {
            lease,
            start,
            head: 0,
            fields: 0,
            body: 0,
        }
    }

    /// Returns the slot of the message.
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    pub(crate) fn into_lease(self) -> Lease {
        self.lease
    }

    /// Adds a head field. Must precede the body.
    pub fn add_field(&mut self, name: &str, value: &[u8]) -> Result<(), DraftError> {
        let field = HeadField::new(name.as_bytes(), value)?;
        let lengths = field.length_prefix()?;
        let (start, end) = (self.head as usize, self.head as usize + field.encoded_len());
        if self.fields == MAX_FIELDS || end > envelope::MAX_HEAD_BYTES as usize {
            return Err(HeadError::TooMany.into());
        }
        // The body follows the head directly: a later field would overwrite it.
        if self.body > 0 || self.start + envelope::body_offset(end as u32) > self.lease.slot_size()
        {
            return Err(DraftError::SlotFull);
        }
        let at = self.start + (envelope::ENVELOPE_BYTES + start) as u32;
        self.lease.write_bytes(at, &lengths);
        self.lease.write_bytes(at + 4, name.as_bytes());
        self.lease.write_bytes(at + 4 + name.len() as u32, value);
        (self.head, self.fields) = (end as u32, self.fields + 1);
        Ok(())
    }

    /// Appends bytes to the body.
    pub fn append_body(&mut self, bytes: &[u8]) -> Result<(), DraftError> {
        if bytes.len() > self.body_capacity() as usize
            || !self.lease.write_bytes(self.body_end_offset(), bytes)
        {
            return Err(DraftError::SlotFull);
        }
        count_copied(bytes.len());
        self.body += bytes.len() as u32;
        Ok(())
    }

    /// Returns the bytes that the body can still grow in this slot.
    pub fn body_capacity(&self) -> u32 {
        self.lease
            .slot_size()
            .saturating_sub(self.body_end_offset())
    }

    /// Returns a pointer to the next [`MessageDraft::body_capacity`] body bytes. Call
    /// [`MessageDraft::grow_body`] after writing there.
    pub fn body_ptr(&self) -> Option<NonNull<u8>> {
        self.lease
            .byte_ptr(self.body_end_offset(), self.body_capacity() as usize)
    }

    /// Extends the body by `bytes` bytes that were written at [`MessageDraft::body_ptr`].
    pub fn grow_body(&mut self, bytes: u32) -> Result<(), DraftError> {
        if bytes > self.body_capacity() {
            return Err(DraftError::SlotFull);
        }
        self.body += bytes;
        Ok(())
    }

    /// Writes the envelope. Fills in `head` and `body`, and `total` unless more parts follow.
    pub fn finish(mut self, mut envelope: Envelope) -> OutgoingMessage {
        (envelope.head, envelope.body) = (self.head, self.body);
        let counts_messages = envelope.kind == envelope::MessageKind::Taken;
        // `total` spans all parts, so only a single message can derive it. `Taken` uses the field
        // as a counter.
        if !envelope.has_flag(flag::MORE)
            && envelope.kind != envelope::MessageKind::Part
            && !counts_messages
        {
            envelope.total = u64::from(self.body);
        }
        let length = (self.body_end_offset() - self.start).max(envelope::ENVELOPE_BYTES as u32);
        self.lease.write_bytes(self.start, &envelope.to_bytes());
        OutgoingMessage {
            lease: self.lease,
            offset: self.start,
            length,
        }
    }

    fn body_end_offset(&self) -> u32 {
        self.start + envelope::body_offset(self.head) + self.body
    }
}

/// Reason why a draft rejected a field or body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DraftError {
    /// The slot is full: claim a larger one, or send parts.
    #[error("the slot has no room for it")]
    SlotFull,
    /// The field is invalid, or there are too many.
    #[error(transparent)]
    BadHead(#[from] HeadError),
}

/// A message that is ready to send.
#[derive(Debug)]
pub struct OutgoingMessage {
    /// The slot.
    pub lease: Lease,
    /// Offset of the message within the slot.
    pub offset: u32,
    /// Bytes of the message.
    pub length: u32,
}

/// A received message: its location, and a checked private copy of its envelope.
#[derive(Debug)]
pub struct ReceivedMessage {
    content: MessageContent,
    offset: u32,
    length: u32,
    envelope: Envelope,
}

/// Location of a message.
enum MessageContent {
    /// A slot of the domain's pool that this endpoint holds.
    Slot(Lease),
    /// Private memory: a copy from a strict peer.
    Copy(Vec<u8>),
}

impl fmt::Debug for MessageContent {
    /// Prints the location, not the content: payloads do not belong in logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Slot(lease) => f.debug_tuple("Slot").field(&lease.slot()).finish(),
            Self::Copy(bytes) => write!(f, "Copy({} bytes)", bytes.len()),
        }
    }
}

impl MessageContent {
    fn read_bytes(&self, offset: u32, into: &mut [u8]) -> bool {
        match self {
            Self::Slot(lease) => lease.read_bytes(offset, into),
            Self::Copy(bytes) => {
                let there = bytes
                    .get(offset as usize..)
                    .and_then(|rest| rest.get(..into.len()));
                there.inspect(|there| into.copy_from_slice(there)).is_some()
            }
        }
    }
}

impl ReceivedMessage {
    /// Reads the envelope of the message that `descriptor` names; `lease` holds its slot.
    pub fn from_slot(lease: Lease, descriptor: &Descriptor) -> Result<Self, EnvelopeError> {
        Self::from_content(
            MessageContent::Slot(lease),
            descriptor.offset,
            descriptor.length,
        )
    }

    /// Reads the envelope of a message that was copied out of a strict peer's pool.
    pub fn from_copy(bytes: Vec<u8>) -> Result<Self, EnvelopeError> {
        let length = u32::try_from(bytes.len()).map_err(|_| EnvelopeError::Length)?;
        Self::from_content(MessageContent::Copy(bytes), 0, length)
    }

    fn from_content(
        content: MessageContent,
        offset: u32,
        length: u32,
    ) -> Result<Self, EnvelopeError> {
        let mut copy = [0; envelope::ENVELOPE_BYTES];
        if !content.read_bytes(offset, &mut copy) {
            return Err(EnvelopeError::Length);
        }
        let envelope = Envelope::from_bytes(&copy, length)?;
        Ok(Self {
            content,
            offset,
            length,
            envelope,
        })
    }

    /// Returns the envelope as it was on receipt.
    pub fn envelope(&self) -> &Envelope {
        &self.envelope
    }

    /// Copies the head and parses the copy. `into` is a reusable buffer, which avoids an
    /// allocation.
    pub fn copy_head<'a>(&self, into: &'a mut Vec<u8>) -> Result<HeadFields<'a>, HeadError> {
        // Parses a copy, not the slot: a sender could change the slot between check and use.
        into.resize(self.envelope.head as usize, 0);
        if !self
            .content
            .read_bytes(self.offset + envelope::ENVELOPE_BYTES as u32, into)
        {
            return Err(HeadError::Truncated);
        }
        let fields = HeadFields::new(into);
        fields.check_all()?;
        Ok(fields)
    }

    /// Returns the bytes of the body in this message.
    pub fn body_len(&self) -> u32 {
        self.envelope.body
    }

    /// Copies the body into `into`, which must have [`ReceivedMessage::body_len`] bytes; false
    /// otherwise.
    pub fn copy_body(&self, into: &mut [u8]) -> bool {
        count_copied(into.len());
        into.len() == self.envelope.body as usize
            && self.content.read_bytes(self.body_offset(), into)
    }

    /// Returns a copy of the body.
    pub fn body_copy(&self) -> Vec<u8> {
        let mut copy = vec![0; self.envelope.body as usize];
        self.copy_body(&mut copy);
        copy
    }

    /// Returns the body in place.
    ///
    /// # Safety
    /// No endpoint may write to the slot while the slice lives, as the leases demand. In a domain
    /// without that trust, copy the body. A private copy from a strict peer is always safe.
    pub unsafe fn body_in_place(&self) -> &[u8] {
        let bytes = self.envelope.body as usize;
        match &self.content {
            MessageContent::Slot(lease) => {
                let place = lease
                    .byte_ptr(self.body_offset(), bytes)
                    .unwrap_or(NonNull::dangling());
                // SAFETY: `place` lies within the slot, because the envelope was checked against
                // the descriptor's length; the lease keeps it mapped. The caller guarantees that no
                // endpoint writes there.
                unsafe { std::slice::from_raw_parts(place.as_ptr(), bytes) }
            }
            MessageContent::Copy(copy) => copy
                .get(self.body_offset() as usize..)
                .and_then(|b| b.get(..bytes))
                .unwrap_or_default(),
        }
    }

    /// Returns the slot, to write another message there; a private copy has none.
    pub fn into_lease(self) -> Option<Lease> {
        match self.content {
            MessageContent::Slot(lease) => Some(lease),
            MessageContent::Copy(_) => None,
        }
    }

    /// Returns true if the message lies in a slot that this endpoint holds.
    pub fn is_in_slot(&self) -> bool {
        matches!(self.content, MessageContent::Slot(_))
    }

    /// Forwards head and body under another envelope without a copy; none for a private copy.
    /// `head`, `body` and `total` of the envelope are kept.
    pub fn forward_with(self, mut envelope: Envelope) -> Option<OutgoingMessage> {
        (envelope.head, envelope.body, envelope.total) =
            (self.envelope.head, self.envelope.body, self.envelope.total);
        let (offset, length) = (self.offset, self.length);
        let mut lease = self.into_lease()?;
        lease.write_bytes(offset, &envelope.to_bytes());
        Some(OutgoingMessage {
            lease,
            offset,
            length,
        })
    }

    pub(crate) fn body_offset(&self) -> u32 {
        self.offset + self.envelope.body_offset()
    }
}
