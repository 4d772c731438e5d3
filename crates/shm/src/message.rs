//! Messages in slots: written once, read by copying first and checking the copy.

use std::fmt;
use std::ptr::NonNull;

use crate::copies::copied;
use crate::descriptor::Descriptor;
use crate::envelope::{self, BadEnvelope, Envelope, flag};
use crate::head::{BadHead, Field, Fields, MAX_FIELDS};
use crate::lease::Lease;
use crate::parcel::Parcel;

/// A message that is being written: first its fields, then its body, then the envelope.
#[derive(Debug)]
pub struct Draft {
    lease: Lease,
    start: u32,
    head: u32,
    fields: usize,
    body: u32,
}

impl Draft {
    /// In a slot that this party holds; what was there is overwritten.
    pub fn new(lease: Lease) -> Self {
        Self::at(lease, 0)
    }

    /// From byte `start` of the slot on, a multiple of 8: so that who passes the body on has room for another head before it.
    pub fn at(lease: Lease, start: u32) -> Self {
        debug_assert!(start.is_multiple_of(8), "not a descriptor's offset");
        Self { lease, start, head: 0, fields: 0, body: 0 }
    }

    /// The slot that it is written in.
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    pub(crate) fn into_lease(self) -> Lease {
        self.lease
    }

    /// Adds a field to the head. Only before the body.
    pub fn field(&mut self, name: &str, value: &[u8]) -> Result<(), NotWritten> {
        let field = Field::new(name.as_bytes(), value)?;
        let lengths = field.lengths()?;
        let (start, end) = (self.head as usize, self.head as usize + field.size());
        if self.fields == MAX_FIELDS || end > envelope::MAX_HEAD as usize {
            return Err(BadHead::TooMany.into());
        }
        if self.body > 0 || self.start + envelope::body_at(end as u32) > self.lease.size() {
            return Err(NotWritten::NoRoom);
        }
        let at = self.start + (envelope::SIZE + start) as u32;
        self.lease.write(at, &lengths);
        self.lease.write(at + 4, name.as_bytes());
        self.lease.write(at + 4 + name.len() as u32, value);
        (self.head, self.fields) = (end as u32, self.fields + 1);
        Ok(())
    }

    /// Adds bytes to the body.
    pub fn body(&mut self, bytes: &[u8]) -> Result<(), NotWritten> {
        if bytes.len() > self.room() as usize || !self.lease.write(self.body_end(), bytes) {
            return Err(NotWritten::NoRoom);
        }
        copied(bytes.len());
        self.body += bytes.len() as u32;
        Ok(())
    }

    /// Bytes that the body can still have in this slot.
    pub fn room(&self) -> u32 {
        self.lease.size().saturating_sub(self.body_end())
    }

    /// Where the next [`Draft::room`] bytes of the body go, for who makes them in place; then say [`Draft::grow`].
    pub fn place(&self) -> Option<NonNull<u8>> {
        self.lease.place(self.body_end(), self.room() as usize)
    }

    /// Says that so many bytes were written at [`Draft::place`].
    pub fn grow(&mut self, bytes: u32) -> Result<(), NotWritten> {
        if bytes > self.room() {
            return Err(NotWritten::NoRoom);
        }
        self.body += bytes;
        Ok(())
    }

    /// Writes the envelope: `head` and `body` are filled in here, `total` too unless more parts follow.
    pub fn finish(mut self, mut envelope: Envelope) -> Outgoing {
        (envelope.head, envelope.body) = (self.head, self.body);
        let counts_messages = envelope.kind == envelope::Kind::Taken;
        if !envelope.has(flag::MORE) && envelope.kind != envelope::Kind::Part && !counts_messages {
            envelope.total = u64::from(self.body);
        }
        let length = (self.body_end() - self.start).max(envelope::SIZE as u32);
        self.lease.write(self.start, &envelope.to_bytes());
        Outgoing { lease: self.lease, offset: self.start, length }
    }

    fn body_end(&self) -> u32 {
        self.start + envelope::body_at(self.head) + self.body
    }
}

/// Why something is not in the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotWritten {
    /// The slot is full: claim a larger one, or send parts.
    #[error("the slot has no room for it")]
    NoRoom,
    /// Not a field, or one too many.
    #[error(transparent)]
    Head(#[from] BadHead),
}

/// A message that can be sent.
#[derive(Debug)]
pub struct Outgoing {
    /// The slot.
    pub lease: Lease,
    /// First byte of the message within the slot.
    pub offset: u32,
    /// Bytes of the message.
    pub length: u32,
}

impl Outgoing {
    /// The body again, of a message that was not sent.
    pub fn into_parcel(self) -> Option<Parcel> {
        let mut copy = [0; envelope::SIZE];
        self.lease.read(self.offset, &mut copy);
        let envelope = Envelope::from_bytes(&copy, self.length).ok()?;
        Some(Parcel::new(self.lease, self.offset + envelope.body_at(), envelope.body))
    }
}

/// A message that this party received: where it is, and a private copy of its envelope, checked.
#[derive(Debug)]
pub struct Message {
    content: Content,
    offset: u32,
    length: u32,
    envelope: Envelope,
}

/// Where a message is.
enum Content {
    /// In a slot of the domain's pool that this party holds.
    Slot(Lease),
    /// In private memory: what came from a strict peer.
    Copy(Vec<u8>),
}

impl fmt::Debug for Content {
    /// Whose bytes they are, but not what: logs are no place for them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Slot(lease) => f.debug_tuple("Slot").field(&lease.slot()).finish(),
            Self::Copy(bytes) => write!(f, "Copy({} bytes)", bytes.len()),
        }
    }
}

impl Content {
    fn read(&self, offset: u32, into: &mut [u8]) -> bool {
        match self {
            Self::Slot(lease) => lease.read(offset, into),
            Self::Copy(bytes) => {
                let there = bytes.get(offset as usize..).and_then(|rest| rest.get(..into.len()));
                there.inspect(|there| into.copy_from_slice(there)).is_some()
            }
        }
    }
}

impl Message {
    /// Reads the envelope of what `descriptor` names; `lease` is that of its slot.
    pub fn read(lease: Lease, descriptor: &Descriptor) -> Result<Self, BadEnvelope> {
        Self::of(Content::Slot(lease), descriptor.offset, descriptor.length)
    }

    /// Reads the envelope of a message that was copied out of a strict peer's pool.
    pub fn copied(bytes: Vec<u8>) -> Result<Self, BadEnvelope> {
        let length = u32::try_from(bytes.len()).map_err(|_| BadEnvelope::Length)?;
        Self::of(Content::Copy(bytes), 0, length)
    }

    fn of(content: Content, offset: u32, length: u32) -> Result<Self, BadEnvelope> {
        let mut copy = [0; envelope::SIZE];
        if !content.read(offset, &mut copy) {
            return Err(BadEnvelope::Length);
        }
        let envelope = Envelope::from_bytes(&copy, length)?;
        Ok(Self { content, offset, length, envelope })
    }

    /// The envelope as it was when the message was received.
    pub fn envelope(&self) -> &Envelope {
        &self.envelope
    }

    /// Copies the head and reads the copy. `into` is only memory to use again: no allocation once it is large enough.
    pub fn head<'a>(&self, into: &'a mut Vec<u8>) -> Result<Fields<'a>, BadHead> {
        into.resize(self.envelope.head as usize, 0);
        if !self.content.read(self.offset + envelope::SIZE as u32, into) {
            return Err(BadHead::Cut);
        }
        let fields = Fields::new(into);
        fields.check()?;
        Ok(fields)
    }

    /// Bytes of the body in this message.
    pub fn body_len(&self) -> u32 {
        self.envelope.body
    }

    /// Copies the body out; `into` has [`Message::body_len`] bytes. False when it has another length.
    pub fn copy_body(&self, into: &mut [u8]) -> bool {
        copied(into.len());
        into.len() == self.envelope.body as usize && self.content.read(self.body_at(), into)
    }

    /// The body as a copy.
    pub fn body(&self) -> Vec<u8> {
        let mut copy = vec![0; self.envelope.body as usize];
        self.copy_body(&mut copy);
        copy
    }

    /// The body where it lies.
    ///
    /// # Safety
    /// Every party of the domain keeps to the leases: nobody writes in the slot while the slice lives. Where they are not
    /// trusted so far, copy the body. Of a private copy, which came from a strict peer, nobody else knows.
    pub unsafe fn body_in_place(&self) -> &[u8] {
        let bytes = self.envelope.body as usize;
        match &self.content {
            Content::Slot(lease) => {
                let place = lease.place(self.body_at(), bytes).unwrap_or(NonNull::dangling());
                // SAFETY: `place` lies within the slot, as the envelope's check against the descriptor's length says, and
                // the lease keeps it mapped; the caller answers for nobody writing there.
                unsafe { std::slice::from_raw_parts(place.as_ptr(), bytes) }
            }
            Content::Copy(copy) => copy.get(self.body_at() as usize..).and_then(|b| b.get(..bytes)).unwrap_or_default(),
        }
    }

    /// The slot, to write another message there; a private copy has none.
    pub fn into_lease(self) -> Option<Lease> {
        match self.content {
            Content::Slot(lease) => Some(lease),
            Content::Copy(_) => None,
        }
    }

    /// The body where it lies, to be passed on; a private copy is none.
    pub fn into_parcel(self) -> Option<Parcel> {
        let (at, length) = (self.body_at(), self.envelope.body);
        self.into_lease().map(|lease| Parcel::new(lease, at, length))
    }

    /// Whether it lies in a slot of the domain's pool, which this party holds.
    pub fn is_in_slot(&self) -> bool {
        matches!(self.content, Content::Slot(_))
    }

    /// The same head and body under another envelope, without a copy; of a private copy there is nothing to send on. `head`,
    /// `body` and `total` stay as they are.
    pub fn forward(self, mut envelope: Envelope) -> Option<Outgoing> {
        (envelope.head, envelope.body, envelope.total) = (self.envelope.head, self.envelope.body, self.envelope.total);
        let (offset, length) = (self.offset, self.length);
        let mut lease = self.into_lease()?;
        lease.write(offset, &envelope.to_bytes());
        Some(Outgoing { lease, offset, length })
    }

    fn body_at(&self) -> u32 {
        self.offset + self.envelope.body_at()
    }
}
