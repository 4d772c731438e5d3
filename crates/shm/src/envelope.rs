//! The envelope: the first 64 bytes of every message.

/// Bytes of an envelope.
pub const ENVELOPE_BYTES: usize = 64;
/// Version that this crate writes and reads.
pub const ENVELOPE_VERSION: u8 = 1;
/// `total` of a body of unknown length.
pub const TOTAL_UNKNOWN: u64 = u64::MAX;
pub use nearpath_types::head::MAX_HEAD_BYTES;

/// Kind of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum MessageKind {
    /// A call; the sender expects an answer.
    Call = 1,
    /// An answer, or its first part.
    Answer = 2,
    /// An event; no answer follows.
    Event = 3,
    /// A further part of a body that began with the same `call`.
    Part = 4,
    /// The sender gives the call up, or cannot complete its body.
    Cancel = 5,
    /// Strict domains: number of messages of the peer's body that were released.
    Taken = 6,
}

impl MessageKind {
    /// Decodes the number of a kind.
    pub const fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Call,
            2 => Self::Answer,
            3 => Self::Event,
            4 => Self::Part,
            5 => Self::Cancel,
            6 => Self::Taken,
            _ => return None,
        })
    }
}

/// Bits of `flags`. Writers set unknown bits to 0, readers ignore them.
pub mod flag {
    /// More parts of this body follow.
    pub const MORE: u16 = 1;
    /// `status` is an error of the platform, not of the function.
    pub const PLATFORM: u16 = 2;
    /// The caller accepts an answer in parts.
    pub const PARTS: u16 = 4;
}

/// Private copy of an envelope.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Envelope {
    /// Kind of the message.
    pub kind: MessageKind,
    /// Bits of [`flag`].
    pub flags: u16,
    /// HTTP status of an answer, or 0.
    pub status: u16,
    /// Reason code of `contract/reasons.toml`, or 0.
    pub reason: u16,
    /// Call number, chosen by the caller, unique among its open calls on the channel.
    pub call: u64,
    /// Deadline in CLOCK_MONOTONIC nanoseconds; 0: none.
    pub deadline: u64,
    /// W3C trace id in network byte order; 0: none.
    pub trace: [u8; 16],
    /// Span id of the parent.
    pub span: [u8; 8],
    /// Bytes of the head.
    pub head: u32,
    /// Bytes of the body in this message.
    pub body: u32,
    /// Bytes of the whole body, or [`TOTAL_UNKNOWN`].
    pub total: u64,
}

impl Envelope {
    /// Creates an envelope of an empty message.
    pub const fn new(kind: MessageKind, call: u64) -> Self {
        Self {
            kind,
            flags: 0,
            status: 0,
            reason: 0,
            call,
            deadline: 0,
            trace: [0; 16],
            span: [0; 8],
            head: 0,
            body: 0,
            total: 0,
        }
    }

    /// Returns true if the flag is set.
    pub const fn has_flag(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// Returns the offset of the body within the message.
    pub const fn body_offset(&self) -> u32 {
        body_offset(self.head)
    }

    /// Encodes the envelope.
    pub fn to_bytes(&self) -> [u8; ENVELOPE_BYTES] {
        let mut bytes = [0; ENVELOPE_BYTES];
        bytes[0] = ENVELOPE_VERSION;
        bytes[1] = self.kind as u8;
        bytes[2..4].copy_from_slice(&self.flags.to_le_bytes());
        bytes[4..6].copy_from_slice(&self.status.to_le_bytes());
        bytes[6..8].copy_from_slice(&self.reason.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.call.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.deadline.to_le_bytes());
        bytes[24..40].copy_from_slice(&self.trace);
        bytes[40..48].copy_from_slice(&self.span);
        bytes[48..52].copy_from_slice(&self.head.to_le_bytes());
        bytes[52..56].copy_from_slice(&self.body.to_le_bytes());
        bytes[56..64].copy_from_slice(&self.total.to_le_bytes());
        bytes
    }

    /// Decodes a private copy of an envelope. `length` is the message length of the descriptor.
    pub fn from_bytes(bytes: &[u8; ENVELOPE_BYTES], length: u32) -> Result<Self, EnvelopeError> {
        let u16_at = |at: usize| u16::from_le_bytes(bytes[at..at + 2].try_into().expect("2 bytes"));
        let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        if bytes[0] != ENVELOPE_VERSION {
            return Err(EnvelopeError::Version);
        }
        let envelope = Self {
            kind: MessageKind::from_number(bytes[1]).ok_or(EnvelopeError::Kind)?,
            flags: u16_at(2),
            status: u16_at(4),
            reason: u16_at(6),
            call: u64_at(8),
            deadline: u64_at(16),
            trace: bytes[24..40].try_into().expect("16 bytes"),
            span: bytes[40..48].try_into().expect("8 bytes"),
            head: u32_at(48),
            body: u32_at(52),
            total: u64_at(56),
        };
        envelope.check_lengths(length)?;
        Ok(envelope)
    }

    fn check_lengths(&self, length: u32) -> Result<(), EnvelopeError> {
        // The head's bound comes first: within it `body_offset` cannot overflow. The sum is a u64,
        // because a hostile `body` can overflow u32.
        if self.head > MAX_HEAD_BYTES
            || u64::from(self.body_offset()) + u64::from(self.body) > u64::from(length)
        {
            return Err(EnvelopeError::Length);
        }
        if self.total < u64::from(self.body) {
            Err(EnvelopeError::Total)
        } else {
            Ok(())
        }
    }
}

/// Returns the offset of the body after a head of `head` bytes, at most [`MAX_HEAD_BYTES`].
pub const fn body_offset(head: u32) -> u32 {
    (ENVELOPE_BYTES as u32 + head).next_multiple_of(8)
}

/// Reason why an envelope is invalid; the sender is faulty or hostile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EnvelopeError {
    /// The version is not 1.
    #[error("the version of the message is not 1")]
    Version,
    /// The kind is not in the contract.
    #[error("the kind of the message is unknown")]
    Kind,
    /// Head and body exceed the message, or the head exceeds its limit.
    #[error("the message's head and body are longer than the message")]
    Length,
    /// The whole body is shorter than this part.
    #[error("the message's body is longer than the whole that it belongs to")]
    Total,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn envelope_bytes() -> impl Strategy<Value = [u8; ENVELOPE_BYTES]> {
        (
            any::<[u8; 32]>(),
            any::<[u8; 32]>(),
            0u8..3,
            0u8..8,
            any::<bool>(),
        )
            .prop_map(|(a, b, version, kind, small)| {
                let mut bytes = [0; ENVELOPE_BYTES];
                bytes[..32].copy_from_slice(&a);
                bytes[32..].copy_from_slice(&b);
                (bytes[0], bytes[1]) = (version, kind);
                if small {
                    [50, 51, 54, 55].iter().for_each(|&at| bytes[at] = 0);
                }
                bytes
            })
    }

    proptest! {
        #[test]
        fn a_decoded_envelope_is_encoded_to_the_same_bytes(bytes in envelope_bytes(), length in 64u32..1 << 21) {
            if let Ok(envelope) = Envelope::from_bytes(&bytes, length) {
                prop_assert_eq!(envelope.to_bytes(), bytes);
                prop_assert!(envelope.body_offset().checked_add(envelope.body).unwrap() <= length);
            }
        }
    }

    #[test]
    fn lengths_that_overflow_are_refused() {
        let mut envelope = Envelope {
            total: TOTAL_UNKNOWN,
            body: u32::MAX - 60,
            ..Envelope::new(MessageKind::Call, 1)
        };
        assert_eq!(
            Envelope::from_bytes(&envelope.to_bytes(), 4096),
            Err(EnvelopeError::Length)
        );
        (envelope.body, envelope.head) = (0, u32::MAX - 3);
        assert_eq!(
            Envelope::from_bytes(&envelope.to_bytes(), 4096),
            Err(EnvelopeError::Length)
        );
    }
}
