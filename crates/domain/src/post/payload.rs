//! Bodies that go out where they lie: written there, or passed on as they came.
//!
//! A [`Draft`] is memory of a slot that only its owner writes, with room before it for what goes ahead of a body. A [`Payload`] is
//! one that is complete, or one that came. Handed over, it takes its slot along, if nobody else looks at it; else it is copied,
//! and so it is when the head has no room before it. Whoever hands it over sees no difference.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

use bytes::{Bytes, BytesMut};
use nearpath_shm::{Member, Message, Parcel};

/// A body that is being written: as many zeros as were asked for, in a slot of the pool if there was one that large, else in
/// private memory. Dropped, it gives the slot back. Its party does not leave the domain before it is dropped or handed over.
pub struct Draft {
    room: Room,
    /// Whoever writes in a slot of a party that has left writes in what is somebody else's by now: so it stays.
    _stays: Option<Arc<OwnedFd>>,
}

enum Room {
    Slot(Parcel),
    Own(Vec<u8>),
}

impl Draft {
    /// `socket`: the party is one as long as it is open.
    pub(super) fn claim(member: &Arc<Member>, socket: &Arc<OwnedFd>, bytes: usize) -> Option<Self> {
        let parcel = Parcel::claim(member, u32::try_from(bytes).ok()?).ok()?;
        Some(Self { room: Room::Slot(parcel), _stays: Some(Arc::clone(socket)) })
    }

    /// In private memory: it is copied into a slot, or goes in parts, when it is sent.
    pub fn private(bytes: usize) -> Self {
        Self::written(vec![0; bytes])
    }

    /// Bytes that are there already, in private memory.
    pub fn written(bytes: Vec<u8>) -> Self {
        Self { room: Room::Own(bytes), _stays: None }
    }

    /// Whether it lies in a slot.
    pub fn is_in_slot(&self) -> bool {
        matches!(self.room, Room::Slot(_))
    }

    /// Cuts it; does nothing when it is not longer than that.
    pub fn truncate(&mut self, bytes: usize) {
        match &mut self.room {
            Room::Slot(parcel) => parcel.truncate(u32::try_from(bytes).unwrap_or(u32::MAX)),
            Room::Own(own) => own.truncate(bytes),
        }
    }
}

impl Deref for Draft {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.room {
            Room::Slot(parcel) => parcel.bytes(),
            Room::Own(own) => own,
        }
    }
}

impl DerefMut for Draft {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.room {
            Room::Slot(parcel) => parcel.bytes_mut(),
            Room::Own(own) => own,
        }
    }
}

impl AsRef<[u8]> for Draft {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Draft {
    /// Without what it holds: logs are no place for that.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = if self.is_in_slot() { "slot" } else { "private memory" };
        write!(f, "Draft({} bytes in {place})", self.len())
    }
}

/// A body. It shows [`Bytes`]; as long as none of these, or no clone of them, is kept elsewhere, it can be passed on without a
/// copy.
#[derive(Default)]
pub struct Payload(Kept);

enum Kept {
    Bytes(Bytes),
    /// `shown` is there once somebody has looked: its owner is the same parcel.
    Slot {
        shown: OnceLock<Bytes>,
        parcel: Arc<Parcel>,
    },
}

impl Default for Kept {
    fn default() -> Self {
        Self::Bytes(Bytes::new())
    }
}

/// A parcel as the owner of bytes.
struct Shown(Arc<Parcel>);

impl AsRef<[u8]> for Shown {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes()
    }
}

impl Payload {
    /// That of a message which came whole.
    pub(super) fn received(message: Message) -> Self {
        match message.body_len() {
            0 => Self::default(),
            _ if message.is_in_slot() => message.into_parcel().map(Self::of).unwrap_or_default(),
            _ => Bytes::from_owner(nearpath_shm::Payload::new(message)).into(),
        }
    }

    fn of(parcel: Parcel) -> Self {
        Self(Kept::Slot { shown: OnceLock::new(), parcel: Arc::new(parcel) })
    }

    /// The bytes. Clones of them keep the slot, and keep the body from being passed on without a copy.
    pub fn bytes(&self) -> &Bytes {
        match &self.0 {
            Kept::Bytes(bytes) => bytes,
            Kept::Slot { shown, parcel } => shown.get_or_init(|| Bytes::from_owner(Shown(Arc::clone(parcel)))),
        }
    }

    /// The same body once more. While both are there, neither goes without a copy.
    pub fn share(&self) -> Self {
        match &self.0 {
            Kept::Bytes(bytes) => bytes.clone().into(),
            Kept::Slot { parcel, .. } => Self(Kept::Slot { shown: OnceLock::new(), parcel: Arc::clone(parcel) }),
        }
    }

    /// Whether it lies in a slot that can be handed over: nobody keeps bytes of it elsewhere.
    pub fn can_go(&mut self) -> bool {
        let Kept::Slot { shown, parcel } = &mut self.0 else { return false };
        drop(shown.take()); // its own look at it
        Arc::get_mut(parcel).is_some()
    }

    /// The slot, for the party that holds it to hand it over; nothing is left here. None when it is in no slot of that party,
    /// or somebody else looks at it.
    pub(super) fn take_parcel(&mut self, member: &Arc<Member>) -> Option<Parcel> {
        let Kept::Slot { parcel, .. } = &self.0 else { return None };
        if !parcel.is_of(member) || !self.can_go() {
            return None;
        }
        match std::mem::take(self).0 {
            Kept::Slot { parcel, .. } => Arc::into_inner(parcel),
            Kept::Bytes(_) => None,
        }
    }

    pub(super) fn give_back(&mut self, parcel: Parcel) {
        *self = Self::of(parcel);
    }
}

impl Deref for Payload {
    type Target = Bytes;

    fn deref(&self) -> &Bytes {
        self.bytes()
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Payload({} bytes)", self.bytes().len())
    }
}

impl<T: AsRef<[u8]>> PartialEq<T> for Payload {
    fn eq(&self, other: &T) -> bool {
        self.bytes() == other.as_ref()
    }
}

impl AsRef<[u8]> for Payload {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

impl From<Draft> for Payload {
    fn from(draft: Draft) -> Self {
        match draft.room {
            Room::Slot(parcel) => Self::of(parcel),
            Room::Own(own) => own.into(),
        }
    }
}

impl From<Draft> for Bytes {
    /// Where several get it, each a copy.
    fn from(draft: Draft) -> Self {
        Payload::from(draft).into()
    }
}

impl From<Payload> for Bytes {
    fn from(body: Payload) -> Self {
        match body.0 {
            Kept::Bytes(bytes) => bytes,
            Kept::Slot { mut shown, parcel } => shown.take().unwrap_or_else(|| Self::from_owner(Shown(parcel))),
        }
    }
}

macro_rules! payloads {
    ($($payload:ty),*) => { $(
        impl From<$payload> for Payload {
            fn from(payload: $payload) -> Self {
                Self(Kept::Bytes(payload.into()))
            }
        }
    )* };
}

payloads!(Bytes, BytesMut, Vec<u8>, Box<[u8]>, String, &'static [u8], &'static str);

/// What a message is to be made of.
pub(super) enum Load<'a> {
    /// It stays with who calls, to go another way.
    Kept(&'a Bytes),
    /// It may be handed over; then nothing is left here.
    Given(&'a mut Payload),
}

impl Load<'_> {
    pub(super) fn bytes(&self) -> &Bytes {
        match self {
            Self::Kept(bytes) => bytes,
            Self::Given(body) => body.bytes(),
        }
    }
}
