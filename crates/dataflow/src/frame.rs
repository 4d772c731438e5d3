//! Frames of an edge and of a spill file (`contract/dataflow.md`).
//!
//! A frame is a header of 20 bytes and a payload. The stream protects it against others (TLS
//! between machines). The checksum detects faults of memory, disks and programs, not attacks.

use bytes::Bytes;

/// Size of a frame header, in bytes.
pub const HEADER_BYTES: usize = 20;

/// Largest payload, in bytes: one batch. User code gets an error that asks for smaller batches.
pub const MAX_PAYLOAD_BYTES: usize = 64 << 20;

/// Kind of a frame, as in byte 4 of its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    /// First frame in both directions: names of both ends and the resume position ([`OpenFrame`]),
    /// as JSON.
    Open = 1,
    /// A batch. Numbered.
    Data = 2,
    /// Frames before it belong to the checkpoint whose number is the payload (8 bytes). Numbered.
    Barrier = 3,
    /// Last frame of a producer. Numbered.
    End = 4,
    /// From the consumer: all frames up to this number are processed.
    Ack = 5,
    /// Either side fails; the payload is the reason, as text.
    Fail = 6,
}

/// A validated frame header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// Kind of the frame.
    pub kind: FrameKind,
    /// Size of the payload, in bytes.
    pub length: usize,
    /// Number of the frame on its edge, from 1. In an ack, the last processed number. Else 0.
    pub sequence: u64,
    checksum: u32,
}

/// A complete frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EdgeFrame {
    /// Kind of the frame.
    pub kind: FrameKind,
    /// Number of the frame, as in [`FrameHeader::sequence`].
    pub sequence: u64,
    /// Payload of the frame.
    pub payload: Bytes,
}

/// Reasons why bytes are not a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "each says what it is")]
pub enum MalformedFrame {
    #[error("unknown frame kind {0}: the peer is no worker, or has a newer version")]
    UnknownKind(u8),
    #[error("frame of {0} bytes exceeds {MAX_PAYLOAD_BYTES}: make smaller batches")]
    PayloadTooLong(usize),
    #[error("frame with reserved bytes that are not 0")]
    ReservedBytes,
    #[error("frame of {received} bytes, announced as {announced}")]
    LengthMismatch { announced: usize, received: usize },
    #[error("frame with a wrong checksum: a fault of memory, disk or network")]
    ChecksumMismatch,
    #[error("frame with an invalid sequence number or length")]
    InvalidFields,
}

/// Payload of [`FrameKind::Open`].
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct OpenFrame {
    /// Version of the protocol: 1.
    pub version: u32,
    /// Name of the producer.
    pub from: String,
    /// Name of the consumer.
    pub to: String,
    /// Attempt at the job, increased by every restart. Workers of different attempts refuse each
    /// other.
    pub attempt: u32,
    /// Number of the first frame that is sent or expected. Both ends must name the same one.
    pub next: u64,
    /// From the consumer: bytes that may be in flight.
    #[serde(default)]
    pub window: usize,
}

impl EdgeFrame {
    /// A frame without a sequence number.
    pub fn unnumbered(kind: FrameKind, payload: impl Into<Bytes>) -> Self {
        Self {
            kind,
            sequence: 0,
            payload: payload.into(),
        }
    }

    /// Encodes the header that precedes the payload.
    ///
    /// # Panics
    /// When the payload is larger than [`MAX_PAYLOAD_BYTES`].
    pub fn encode_header(&self) -> [u8; HEADER_BYTES] {
        assert!(
            self.payload.len() <= MAX_PAYLOAD_BYTES,
            "the length is checked when a batch is sent"
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
    /// Parses a received header. The payload has not arrived yet: [`FrameHeader::into_frame`]
    /// checks it.
    ///
    /// # Errors
    /// When the bytes are no header.
    pub fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<Self, MalformedFrame> {
        let u32_at = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let length = u32_at(0) as usize;
        let kind = FrameKind::try_from(bytes[4])?;
        if bytes[5..8] != [0; 3] {
            return Err(MalformedFrame::ReservedBytes);
        }
        // Checked before the payload is read: the length decides how much memory the reader
        // allocates.
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
            // 64 KiB is the contract's limit for the JSON of an open and the text of a failure.
            FrameKind::Open | FrameKind::Fail => self.sequence == 0 && self.length <= 1 << 16,
            FrameKind::Data => self.sequence > 0,
            FrameKind::Barrier => self.sequence > 0 && self.length == 8,
            FrameKind::End => self.sequence > 0 && self.length == 0,
            FrameKind::Ack => self.length == 0,
        }
    }

    /// Adds the payload, when it is what was sent.
    ///
    /// # Errors
    /// On a wrong checksum, and on a payload of another length than announced: bytes with a
    /// matching checksum can be constructed.
    pub fn into_frame(self, payload: Bytes) -> Result<EdgeFrame, MalformedFrame> {
        if payload.len() != self.length {
            return Err(MalformedFrame::LengthMismatch {
                announced: self.length,
                received: payload.len(),
            });
        }
        let frame = EdgeFrame {
            kind: self.kind,
            sequence: self.sequence,
            payload,
        };
        // Encoded again instead of kept: the fields were checked, so the bytes are the same ones
        // that arrived.
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

/// CRC-32 (IEEE) of the first 16 bytes of the header and the payload. The last 4 bytes hold the sum
/// itself.
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

    /// A checksum is no proof: other bytes with the same one can be constructed.
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
            Err(MalformedFrame::LengthMismatch {
                announced: 200,
                received: 9
            })
        );
    }

    proptest! {
        #[test]
        fn a_frame_is_read_as_it_was_written(sequence in 1..u64::MAX, payload in prop::collection::vec(any::<u8>(), 0..100)) {
            let frame = EdgeFrame { kind: FrameKind::Data, sequence, payload: payload.into() };
            prop_assert_eq!(round_trip(&frame), Ok(frame));
        }

        #[test]
        fn a_flipped_bit_is_detected(at in 0..HEADER_BYTES + 9, bit in 0..8_u8) {
            let frame = EdgeFrame { kind: FrameKind::Data, sequence: 7, payload: Bytes::from_static(b"some data") };
            let mut bytes = [&frame.encode_header()[..], b"some data"].concat();
            bytes[at] ^= 1 << bit;
            let head = FrameHeader::parse(bytes[..HEADER_BYTES].try_into().unwrap());
            let read = head.and_then(|head| head.into_frame(Bytes::copy_from_slice(&bytes[HEADER_BYTES..])));
            prop_assert!(read.is_err(), "{read:?}");
        }

        #[test]
        fn any_bytes_are_read_without_panic(bytes in any::<[u8; HEADER_BYTES]>()) {
            if let Ok(head) = FrameHeader::parse(&bytes) {
                prop_assert!(head.length <= MAX_PAYLOAD_BYTES);
            }
        }
    }
}
