//! Bytes of the way between two, as they go over a line: a binary frame.

use bytes::{BufMut, Bytes, BytesMut};

use super::{Hex, SessionText};

/// What stands before the bytes.
const HEAD: usize = 32;

/// At most so many bytes are in one.
pub const MOST_OF_A_PARCEL: usize = 32 << 10;

/// The longest binary frame of a line, in bytes.
pub const LONGEST_PARCEL: usize = HEAD + MOST_OF_A_PARCEL;

/// A piece of the way between two: bytes. The rendezvous reads no more of it than the session.
#[derive(Clone, PartialEq, Eq)]
pub struct Parcel {
    /// Whose.
    pub session: SessionText,
    /// Its number, from the way's beginning.
    pub piece: u64,
    /// So many pieces of the other side's have come.
    pub has: u64,
    /// Some, and at most [`MOST_OF_A_PARCEL`].
    pub bytes: Bytes,
}

impl Parcel {
    /// Reads a frame; `None`: it is too short, or too long. The bytes are not copied.
    pub fn read(frame: &Bytes) -> Option<Self> {
        let session = Self::session_of(frame)?;
        let number = |at: usize| Some(u64::from_le_bytes(frame.get(at..at + 8)?.try_into().ok()?));
        Some(Self { session, piece: number(16)?, has: number(24)?, bytes: frame.slice(HEAD..) })
    }

    /// Whose a frame is; `None`: it is none of these.
    pub fn session_of(frame: &[u8]) -> Option<SessionText> {
        let has_bytes = HEAD < frame.len() && frame.len() <= LONGEST_PARCEL;
        let id: [u8; 16] = frame.get(..16)?.try_into().ok()?;
        has_bytes.then_some(Hex(id))
    }

    /// As it is sent.
    pub fn write(&self) -> Bytes {
        let mut frame = BytesMut::with_capacity(HEAD + self.bytes.len());
        frame.put_slice(&self.session.0);
        frame.put_u64_le(self.piece);
        frame.put_u64_le(self.has);
        frame.put_slice(&self.bytes);
        frame.freeze()
    }
}

/// Smaller ones are copied.
const WORTH_ITS_BUFFER: usize = 8 << 10;

/// A frame that keeps no more memory than it needs, or some times as much: what is read together is one buffer until all of it is gone.
pub fn alone(frame: Bytes) -> Bytes {
    if frame.len() < WORTH_ITS_BUFFER { Bytes::copy_from_slice(&frame) } else { frame }
}

impl std::fmt::Debug for Parcel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "piece {} with {} bytes, has {}", self.piece, self.bytes.len(), self.has)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_frame_does_not_keep_what_was_read_with_it() {
        let read = Bytes::from(vec![7; 100_000]);
        let [small, large] = [1000, 30_000].map(|len| read.slice(..len));
        assert_eq!((&alone(small.clone()), &alone(large.clone())), (&small, &large));
        assert_ne!(alone(small.clone()).as_ptr(), small.as_ptr());
        assert_eq!(alone(large.clone()).as_ptr(), large.as_ptr());
    }

    #[test]
    fn a_parcel_is_read_as_it_was_written_and_nothing_else_is() {
        let parcel = Parcel { session: Hex([7; 16]), piece: 3, has: u64::MAX, bytes: Bytes::from_static(b"bytes") };
        let frame = parcel.write();
        assert_eq!((Parcel::read(&frame), frame.len()), (Some(parcel.clone()), HEAD + 5));
        assert_eq!(Parcel::session_of(&frame), Some(parcel.session));
        let of = |bytes: usize| Bytes::from(vec![0; HEAD + bytes]);
        assert_eq!(Parcel::read(&frame.slice(..HEAD)), None, "no bytes");
        assert_eq!((0..HEAD).find(|short| Parcel::read(&frame.slice(..*short)).is_some()), None);
        assert!(Parcel::read(&of(MOST_OF_A_PARCEL)).is_some() && Parcel::read(&of(MOST_OF_A_PARCEL + 1)).is_none());
    }
}
