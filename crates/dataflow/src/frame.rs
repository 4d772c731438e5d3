//! What goes over an edge, and what lies in a spill file (`contract/dataflow.md`).
//!
//! A frame is a head of 20 bytes and a payload. Streams carry it as it is; what keeps others from reading or changing it is the
//! stream's business (TLS). The checksum is against faults of memory, disks and programs, not against people.

use bytes::Bytes;

/// Bytes of a head.
pub const HEADER_BYTES: usize = 20;

/// The longest payload, in bytes. One batch; user code is told to make smaller ones.
pub const MAX_PAYLOAD_BYTES: usize = 64 << 20;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    /// First, in both directions: who speaks ([`OpenFrame`]), as JSON.
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
pub struct FrameHeader {
    /// What the frame is.
    pub kind: FrameKind,
    /// Bytes of the payload.
    pub length: usize,
    /// The frame's number on its edge, from 1; of an ack, the last that is processed; else 0.
    pub sequence: u64,
    checksum: u32,
}

/// A whole frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EdgeFrame {
    /// What it is.
    pub kind: FrameKind,
    /// Its number.
    pub sequence: u64,
    /// What it carries.
    pub payload: Bytes,
}

/// Bytes that are no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "each says what it is")]
pub enum MalformedFrame {
    #[error("a frame of unknown kind {0}: the peer is no worker, or a newer one")]
    UnknownKind(u8),
    #[error("a frame of {0} bytes is longer than {MAX_PAYLOAD_BYTES}: make smaller batches")]
    PayloadTooLong(usize),
    #[error("a frame whose reserved bytes are not 0")]
    ReservedBytes,
    #[error("a frame of {came} bytes that says it has {said}")]
    LengthMismatch { said: usize, came: usize },
    #[error("a frame whose checksum is wrong: memory, disk or the way between has a fault")]
    ChecksumMismatch,
    #[error("a frame whose numbers have no meaning")]
    InvalidFields,
}

/// The payload of [`Kind::OpenFrame`].
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct OpenFrame {
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

impl EdgeFrame {
    /// Whatever carries no number.
    pub fn unnumbered(kind: FrameKind, payload: impl Into<Bytes>) -> Self {
        Self {
            kind,
            sequence: 0,
            payload: payload.into(),
        }
    }

    /// The bytes that go before the payload.
    ///
    /// # Panics
    /// When the payload is longer than [`LONGEST`].
    pub fn encode_header(&self) -> [u8; HEADER_BYTES] {
        assert!(
            self.payload.len() <= MAX_PAYLOAD_BYTES,
            "the length was checked when the batch was given"
        );
        let mut header = [0; HEADER_BYTES];
        header[..4].copy_from_slice(&(self.payload.len() as u32).to_le_bytes());
        header[4] = self.kind as u8;
        header[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        let checksum = frame_checksum(&header, &self.payload);
        header[16..].copy_from_slice(&checksum.to_le_bytes());
        header
    }
}

impl FrameHeader {
    /// Of bytes that came. The payload is not yet there: [`FrameHeader::close`] checks it.
    ///
    /// # Errors
    /// What cannot be a head.
    pub fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<Self, MalformedFrame> {
        let u32_at = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let length = u32_at(0) as usize;
        let kind = FrameKind::try_from(bytes[4])?;
        if bytes[5..8] != [0; 3] {
            return Err(MalformedFrame::ReservedBytes);
        }
        if length > MAX_PAYLOAD_BYTES {
            return Err(MalformedFrame::PayloadTooLong(length));
        }
        let sequence = u64::from(u32_at(8)) | u64::from(u32_at(12)) << 32;
        let header = Self {
            kind,
            length,
            sequence,
            checksum: u32_at(16),
        };
        if header.is_consistent() {
            Ok(header)
        } else {
            Err(MalformedFrame::InvalidFields)
        }
    }

    fn is_consistent(&self) -> bool {
        match self.kind {
            FrameKind::Open | FrameKind::Fail => self.sequence == 0 && self.length <= 1 << 16,
            FrameKind::Data => self.sequence > 0,
            FrameKind::Barrier => self.sequence > 0 && self.length == 8,
            FrameKind::End => self.sequence > 0 && self.length == 0,
            FrameKind::Ack => self.length == 0,
        }
    }

    /// The frame, when the payload is what was sent.
    ///
    /// # Errors
    /// A wrong checksum, and a payload that is not as long as the head says: a sum can be made to fit any bytes.
    pub fn into_frame(self, payload: Bytes) -> Result<EdgeFrame, MalformedFrame> {
        if payload.len() != self.length {
            return Err(MalformedFrame::LengthMismatch {
                said: self.length,
                came: payload.len(),
            });
        }
        let frame = EdgeFrame {
            kind: self.kind,
            sequence: self.sequence,
            payload,
        };
        let mut header = [0; HEADER_BYTES];
        header[..4].copy_from_slice(&(self.length as u32).to_le_bytes());
        header[4] = self.kind as u8;
        header[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        if frame_checksum(&header, &frame.payload) == self.checksum {
            Ok(frame)
        } else {
            Err(MalformedFrame::ChecksumMismatch)
        }
    }
}

/// Over the first 16 bytes of the head and the payload.
fn frame_checksum(header: &[u8; HEADER_BYTES], payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&header[..16]);
    hasher.update(payload);
    hasher.finalize()
}

impl TryFrom<u8> for FrameKind {
    type Error = MalformedFrame;

    fn try_from(byte: u8) -> Result<Self, MalformedFrame> {
        let kinds = [
            Self::Open,
            Self::Data,
            Self::Barrier,
            Self::End,
            Self::Ack,
            Self::Fail,
        ];
        kinds
            .into_iter()
            .find(|kind| *kind as u8 == byte)
            .ok_or(MalformedFrame::UnknownKind(byte))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn round_trip(frame: &EdgeFrame) -> Result<EdgeFrame, MalformedFrame> {
        FrameHeader::parse(&frame.encode_header())?.into_frame(frame.payload.clone())
    }

    #[test]
    fn encoding_matches_the_contract_vectors() {
        let text = std::fs::read_to_string("../../contract/vectors/dataflow.json").unwrap();
        let vectors: serde_json::Value = serde_json::from_str(&text).unwrap();
        let frames = vectors["frames"].as_array().unwrap();
        assert!(frames.len() >= 5);
        for vector in frames {
            let payload = vector["payload"].as_str().unwrap();
            let payload = (0..payload.len())
                .step_by(2)
                .map(|at| u8::from_str_radix(&payload[at..at + 2], 16).unwrap());
            let frame = EdgeFrame {
                kind: (vector["kind"].as_u64().unwrap() as u8).try_into().unwrap(),
                sequence: vector["sequence"].as_u64().unwrap(),
                payload: payload.collect::<Vec<_>>().into(),
            };
            let header: String = frame
                .encode_header()
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect();
            assert_eq!(header, vector["head"].as_str().unwrap(), "{vector}");
            assert_eq!(round_trip(&frame).unwrap(), frame);
        }
    }

    /// A checksum is no proof: bytes can be found that have any.
    #[test]
    fn a_payload_of_another_length_than_announced_is_refused() {
        let mut bytes = EdgeFrame {
            kind: FrameKind::Data,
            sequence: 7,
            payload: Bytes::from_static(b"some data"),
        }
        .encode_header();
        bytes[0] = 200;
        let checksum = frame_checksum(&bytes, b"some data");
        bytes[16..].copy_from_slice(&checksum.to_le_bytes());
        let read = FrameHeader::parse(&bytes)
            .unwrap()
            .into_frame(Bytes::from_static(b"some data"));
        assert_eq!(
            read,
            Err(MalformedFrame::LengthMismatch { said: 200, came: 9 })
        );
    }

    proptest! {
        #[test]
        fn comes_back(sequence in 1..u64::MAX, payload in prop::collection::vec(any::<u8>(), 0..100)) {
            let frame = EdgeFrame { kind: FrameKind::Data, sequence, payload: payload.into() };
            prop_assert_eq!(round_trip(&frame), Ok(frame));
        }

        #[test]
        fn one_wrong_bit_is_seen(at in 0..HEADER_BYTES + 9, bit in 0..8_u8) {
            let frame = EdgeFrame { kind: FrameKind::Data, sequence: 7, payload: Bytes::from_static(b"some data") };
            let mut bytes = [&frame.encode_header()[..], b"some data"].concat();
            bytes[at] ^= 1 << bit;
            let head = FrameHeader::parse(bytes[..HEADER_BYTES].try_into().unwrap());
            let read = head.and_then(|head| head.into_frame(Bytes::copy_from_slice(&bytes[HEADER_BYTES..])));
            prop_assert!(read.is_err(), "{read:?}");
        }

        #[test]
        fn no_bytes_break_it(bytes in any::<[u8; HEADER_BYTES]>()) {
            if let Ok(head) = FrameHeader::parse(&bytes) {
                prop_assert!(head.length <= MAX_PAYLOAD_BYTES);
            }
        }
    }
}
