//! What goes over an edge, and what lies in a spill file (`contract/dataflow.md`).
//!
//! A frame is a head of 20 bytes and a payload. Streams carry it as it is; what keeps others from reading or changing it is the
//! stream's business (TLS). The checksum is against faults of memory, disks and programs, not against people.

use bytes::Bytes;

/// Bytes of a head.
pub const HEAD: usize = 20;

/// The longest payload, in bytes. One batch; user code is told to make smaller ones.
pub const LONGEST: usize = 64 << 20;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// First, in both directions: who speaks ([`Open`]), as JSON.
    Open = 1,
    /// A batch. Numbered.
    Data = 2,
    /// What came before belongs to the checkpoint whose number is the payload (8 bytes). Numbered.
    Barrier = 3,
    /// Nothing follows. Numbered.
    End = 4,
    /// Backwards: all up to this number has been processed.
    Ack = 5,
    /// Either side gives up; why, as text.
    Fail = 6,
}

/// A head, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// What the frame is.
    pub kind: Kind,
    /// Bytes of the payload.
    pub length: usize,
    /// The frame's number on its edge, from 1; of an ack, the last that is processed; else 0.
    pub sequence: u64,
    check: u32,
}

/// A whole frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// What it is.
    pub kind: Kind,
    /// Its number.
    pub sequence: u64,
    /// What it carries.
    pub payload: Bytes,
}

/// Bytes that are no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "each says what it is")]
pub enum Malformed {
    #[error("a frame of unknown kind {0}: the peer is no worker, or a newer one")]
    Kind(u8),
    #[error("a frame of {0} bytes is longer than {LONGEST}: make smaller batches")]
    Long(usize),
    #[error("a frame whose reserved bytes are not 0")]
    Reserved,
    #[error("a frame of {came} bytes that says it has {said}")]
    Length { said: usize, came: usize },
    #[error("a frame whose checksum is wrong: memory, disk or the way between has a fault")]
    Check,
    #[error("a frame whose numbers have no meaning")]
    Senseless,
}

/// The payload of [`Kind::Open`].
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Open {
    /// 1.
    pub version: u32,
    /// The producer.
    pub from: String,
    /// The consumer.
    pub to: String,
    /// Which attempt at the job: one more after each restart. Workers of different attempts do not speak.
    pub attempt: u32,
    /// The first number that will be sent, or is awaited. Both must name the same one.
    pub next: u64,
    /// Of a consumer: how many bytes may be on their way.
    #[serde(default)]
    pub window: usize,
}

impl Frame {
    /// Whatever carries no number.
    pub fn plain(kind: Kind, payload: impl Into<Bytes>) -> Self {
        Self { kind, sequence: 0, payload: payload.into() }
    }

    /// The bytes that go before the payload.
    ///
    /// # Panics
    /// When the payload is longer than [`LONGEST`].
    pub fn head(&self) -> [u8; HEAD] {
        assert!(self.payload.len() <= LONGEST, "the length was checked when the batch was given");
        let mut head = [0; HEAD];
        head[..4].copy_from_slice(&(self.payload.len() as u32).to_le_bytes());
        head[4] = self.kind as u8;
        head[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        let check = sum(&head, &self.payload);
        head[16..].copy_from_slice(&check.to_le_bytes());
        head
    }
}

impl Head {
    /// Of bytes that came. The payload is not yet there: [`Head::close`] checks it.
    ///
    /// # Errors
    /// What cannot be a head.
    pub fn read(bytes: &[u8; HEAD]) -> Result<Self, Malformed> {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let length = word(0) as usize;
        let kind = Kind::try_from(bytes[4])?;
        if bytes[5..8] != [0; 3] {
            return Err(Malformed::Reserved);
        }
        if length > LONGEST {
            return Err(Malformed::Long(length));
        }
        let sequence = u64::from(word(8)) | u64::from(word(12)) << 32;
        let head = Self { kind, length, sequence, check: word(16) };
        if head.has_sense() { Ok(head) } else { Err(Malformed::Senseless) }
    }

    fn has_sense(&self) -> bool {
        match self.kind {
            Kind::Open | Kind::Fail => self.sequence == 0 && self.length <= 1 << 16,
            Kind::Data => self.sequence > 0,
            Kind::Barrier => self.sequence > 0 && self.length == 8,
            Kind::End => self.sequence > 0 && self.length == 0,
            Kind::Ack => self.length == 0,
        }
    }

    /// The frame, when the payload is what was sent.
    ///
    /// # Errors
    /// A wrong checksum, and a payload that is not as long as the head says: a sum can be made to fit any bytes.
    pub fn close(self, payload: Bytes) -> Result<Frame, Malformed> {
        if payload.len() != self.length {
            return Err(Malformed::Length { said: self.length, came: payload.len() });
        }
        let frame = Frame { kind: self.kind, sequence: self.sequence, payload };
        let mut head = [0; HEAD];
        head[..4].copy_from_slice(&(self.length as u32).to_le_bytes());
        head[4] = self.kind as u8;
        head[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        if sum(&head, &frame.payload) == self.check { Ok(frame) } else { Err(Malformed::Check) }
    }
}

/// Over the first 16 bytes of the head and the payload.
fn sum(head: &[u8; HEAD], payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&head[..16]);
    hasher.update(payload);
    hasher.finalize()
}

impl TryFrom<u8> for Kind {
    type Error = Malformed;

    fn try_from(byte: u8) -> Result<Self, Malformed> {
        let kinds = [Self::Open, Self::Data, Self::Barrier, Self::End, Self::Ack, Self::Fail];
        kinds.into_iter().find(|kind| *kind as u8 == byte).ok_or(Malformed::Kind(byte))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn whole(frame: &Frame) -> Result<Frame, Malformed> {
        Head::read(&frame.head())?.close(frame.payload.clone())
    }

    #[test]
    fn vectors_are_what_this_writes() {
        let text = std::fs::read_to_string("../../contract/vectors/dataflow.json").unwrap();
        let vectors: serde_json::Value = serde_json::from_str(&text).unwrap();
        let frames = vectors["frames"].as_array().unwrap();
        assert!(frames.len() >= 5);
        for vector in frames {
            let payload = vector["payload"].as_str().unwrap();
            let payload = (0..payload.len()).step_by(2).map(|at| u8::from_str_radix(&payload[at..at + 2], 16).unwrap());
            let frame = Frame {
                kind: (vector["kind"].as_u64().unwrap() as u8).try_into().unwrap(),
                sequence: vector["sequence"].as_u64().unwrap(),
                payload: payload.collect::<Vec<_>>().into(),
            };
            let head: String = frame.head().iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(head, vector["head"].as_str().unwrap(), "{vector}");
            assert_eq!(whole(&frame).unwrap(), frame);
        }
    }

    /// A checksum is no proof: bytes can be found that have any.
    #[test]
    fn a_payload_is_as_long_as_its_head_says() {
        let mut bytes = Frame { kind: Kind::Data, sequence: 7, payload: Bytes::from_static(b"some data") }.head();
        bytes[0] = 200;
        let check = sum(&bytes, b"some data");
        bytes[16..].copy_from_slice(&check.to_le_bytes());
        let read = Head::read(&bytes).unwrap().close(Bytes::from_static(b"some data"));
        assert_eq!(read, Err(Malformed::Length { said: 200, came: 9 }));
    }

    proptest! {
        #[test]
        fn comes_back(sequence in 1..u64::MAX, payload in prop::collection::vec(any::<u8>(), 0..100)) {
            let frame = Frame { kind: Kind::Data, sequence, payload: payload.into() };
            prop_assert_eq!(whole(&frame), Ok(frame));
        }

        #[test]
        fn one_wrong_bit_is_seen(at in 0..HEAD + 9, bit in 0..8_u8) {
            let frame = Frame { kind: Kind::Data, sequence: 7, payload: Bytes::from_static(b"some data") };
            let mut bytes = [&frame.head()[..], b"some data"].concat();
            bytes[at] ^= 1 << bit;
            let head = Head::read(bytes[..HEAD].try_into().unwrap());
            let read = head.and_then(|head| head.close(Bytes::copy_from_slice(&bytes[HEAD..])));
            prop_assert!(read.is_err(), "{read:?}");
        }

        #[test]
        fn no_bytes_break_it(bytes in any::<[u8; HEAD]>()) {
            if let Ok(head) = Head::read(&bytes) {
                prop_assert!(head.length <= LONGEST);
            }
        }
    }
}
