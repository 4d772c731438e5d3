//! Bodies that are sent in place: written there, or forwarded as received.
//!
//! A [`BodyDraft`] is slot memory that only its owner writes, with space for a head. A [`CallBody`]
//! is a complete or received body. Sending moves its slot when nothing else refers to it, and its
//! head fits; otherwise it is copied. Callers see no difference.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

use bytes::{Bytes, BytesMut};
use nearpath_shm::{OwnedSlot, PoolEndpoint, ReceivedMessage};

/// A zeroed body being written, in a slot if one is free, else in private memory. Dropping it frees
/// the slot. Its endpoint stays in the domain until the draft is dropped or sent.
pub struct BodyDraft {
    memory: DraftMemory,
    /// Keeps the endpoint joined: after it left, its slots belong to others.
    _socket: Option<Arc<OwnedFd>>,
}

enum DraftMemory {
    Slot(OwnedSlot),
    Private(Vec<u8>),
}

impl BodyDraft {
    /// Claims a slot; the endpoint stays joined while `socket` is open.
    pub(super) fn claim_slot(
        member: &Arc<PoolEndpoint>,
        socket: &Arc<OwnedFd>,
        bytes: usize,
    ) -> Option<Self> {
        let slot = OwnedSlot::claim_zeroed(member, u32::try_from(bytes).ok()?).ok()?;
        Some(Self {
            memory: DraftMemory::Slot(slot),
            _socket: Some(Arc::clone(socket)),
        })
    }

    /// Creates a draft in private memory; sending copies it.
    pub fn in_private_memory(bytes: usize) -> Self {
        Self::from_vec(vec![0; bytes])
    }

    /// Wraps bytes in private memory.
    pub fn from_vec(bytes: Vec<u8>) -> Self {
        Self {
            memory: DraftMemory::Private(bytes),
            _socket: None,
        }
    }

    /// Returns true if the draft lies in a slot.
    pub fn is_in_slot(&self) -> bool {
        matches!(self.memory, DraftMemory::Slot(_))
    }

    /// Truncates the draft; no effect when it is not longer.
    pub fn truncate(&mut self, bytes: usize) {
        match &mut self.memory {
            DraftMemory::Slot(slot) => slot.truncate(u32::try_from(bytes).unwrap_or(u32::MAX)),
            DraftMemory::Private(own) => own.truncate(bytes),
        }
    }
}

impl Deref for BodyDraft {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.memory {
            DraftMemory::Slot(slot) => slot.bytes(),
            DraftMemory::Private(own) => own,
        }
    }
}

impl DerefMut for BodyDraft {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.memory {
            DraftMemory::Slot(slot) => slot.bytes_mut(),
            DraftMemory::Private(own) => own,
        }
    }
}

impl AsRef<[u8]> for BodyDraft {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for BodyDraft {
    /// Prints size and location, not content: payloads do not belong in logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = if self.is_in_slot() {
            "slot"
        } else {
            "private memory"
        };
        write!(f, "Draft({} bytes in {place})", self.len())
    }
}

/// A body. It derefs to [`Bytes`]. While no clone of these is kept elsewhere, the body can be
/// forwarded without a copy.
#[derive(Default)]
pub struct CallBody(BodyMemory);

enum BodyMemory {
    Bytes(Bytes),
    /// `view` is set once the bytes were read; its owner is the same slot.
    Slot {
        view: OnceLock<Bytes>,
        slot: Arc<OwnedSlot>,
    },
}

impl Default for BodyMemory {
    fn default() -> Self {
        Self::Bytes(Bytes::new())
    }
}

/// A slot as an owner of bytes.
struct SharedSlot(Arc<OwnedSlot>);

impl AsRef<[u8]> for SharedSlot {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes()
    }
}

impl CallBody {
    /// Takes the body of a message that arrived whole.
    pub(super) fn from_message(message: ReceivedMessage) -> Self {
        // An empty body keeps no slot: its message would occupy one until it is dropped.
        match message.body_len() {
            0 => Self::default(),
            _ if message.is_in_slot() => message
                .into_owned_slot()
                .map(Self::from_slot)
                .unwrap_or_default(),
            _ => Bytes::from_owner(nearpath_shm::MessagePayload::new(message)).into(),
        }
    }

    fn from_slot(slot: OwnedSlot) -> Self {
        Self(BodyMemory::Slot {
            view: OnceLock::new(),
            slot: Arc::new(slot),
        })
    }

    /// Returns the bytes. Clones of them keep the slot, and prevent forwarding without a copy.
    pub fn bytes(&self) -> &Bytes {
        match &self.0 {
            BodyMemory::Bytes(bytes) => bytes,
            BodyMemory::Slot { view, slot } => {
                // Made on demand: a body that is only forwarded needs no second reference.
                view.get_or_init(|| Bytes::from_owner(SharedSlot(Arc::clone(slot))))
            }
        }
    }

    /// Returns the same body again. While both exist, sending copies.
    pub fn share(&self) -> Self {
        match &self.0 {
            BodyMemory::Bytes(bytes) => bytes.clone().into(),
            BodyMemory::Slot { slot, .. } => Self(BodyMemory::Slot {
                view: OnceLock::new(),
                slot: Arc::clone(slot),
            }),
        }
    }

    /// Returns true if the body lies in a slot that can be moved: nothing else refers to its bytes.
    pub fn is_exclusive_slot(&mut self) -> bool {
        let BodyMemory::Slot { view, slot } = &mut self.0 else {
            return false;
        };
        drop(view.take()); // drops the own reference
        Arc::get_mut(slot).is_some()
    }

    /// Takes the slot out for its endpoint to send. None when the body lies elsewhere, or other
    /// references exist.
    pub(super) fn take_slot(&mut self, member: &Arc<PoolEndpoint>) -> Option<OwnedSlot> {
        let BodyMemory::Slot { slot, .. } = &self.0 else {
            return None;
        };
        // A slot of another endpoint or pool cannot be offered by this one: it is copied.
        if !slot.is_held_by(member) || !self.is_exclusive_slot() {
            return None;
        }
        match std::mem::take(self).0 {
            BodyMemory::Slot { slot, .. } => Arc::into_inner(slot),
            BodyMemory::Bytes(_) => None,
        }
    }

    pub(super) fn restore_slot(&mut self, slot: OwnedSlot) {
        *self = Self::from_slot(slot);
    }
}

impl Deref for CallBody {
    type Target = Bytes;

    fn deref(&self) -> &Bytes {
        self.bytes()
    }
}

impl fmt::Debug for CallBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Payload({} bytes)", self.bytes().len())
    }
}

impl<T: AsRef<[u8]>> PartialEq<T> for CallBody {
    fn eq(&self, other: &T) -> bool {
        self.bytes() == other.as_ref()
    }
}

impl AsRef<[u8]> for CallBody {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

impl From<BodyDraft> for CallBody {
    fn from(draft: BodyDraft) -> Self {
        match draft.memory {
            DraftMemory::Slot(slot) => Self::from_slot(slot),
            DraftMemory::Private(own) => own.into(),
        }
    }
}

impl From<BodyDraft> for Bytes {
    /// Copies the draft into shared bytes, for several receivers.
    fn from(draft: BodyDraft) -> Self {
        CallBody::from(draft).into()
    }
}

impl From<CallBody> for Bytes {
    fn from(body: CallBody) -> Self {
        match body.0 {
            BodyMemory::Bytes(bytes) => bytes,
            BodyMemory::Slot { mut view, slot } => view
                .take()
                .unwrap_or_else(|| Self::from_owner(SharedSlot(slot))),
        }
    }
}

macro_rules! payloads {
    ($($payload:ty),*) => { $(
        impl From<$payload> for CallBody {
            fn from(payload: $payload) -> Self {
                Self(BodyMemory::Bytes(payload.into()))
            }
        }
    )* };
}

payloads!(
    Bytes,
    BytesMut,
    Vec<u8>,
    Box<[u8]>,
    String,
    &'static [u8],
    &'static str
);

/// Source of a message's body.
pub(super) enum BodySource<'a> {
    /// Borrowed: it stays with the caller, for another path.
    Borrowed(&'a Bytes),
    /// Owned: it may be moved out.
    Owned(&'a mut CallBody),
}

impl BodySource<'_> {
    pub(super) fn bytes(&self) -> &Bytes {
        match self {
            Self::Borrowed(bytes) => bytes,
            Self::Owned(body) => body.bytes(),
        }
    }
}
