//! The first 64 bytes of every message.

/// Bytes of an envelope.
pub const SIZE: usize = 64;
/// The version that this crate writes and reads.
pub const VERSION: u8 = 1;
/// `total` of a body whose length nobody knows yet.
pub const TOTAL_UNKNOWN: u64 = u64::MAX;
pub use nearpath_types::head::MAX_HEAD;

/// What a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// A caller wants an answer.
    Call = 1,
    /// The answer, or its first part.
    Answer = 2,
    /// Nobody waits for an answer.
    Event = 3,
    /// More of a body that began with the same `call`.
    Part = 4,
    /// The sender no longer wants the call, or cannot finish what it began.
    Cancel = 5,
    /// In a strict domain: so many messages of the other side's body have been let go of.
    Taken = 6,
}

impl Kind {
    /// By its number.
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

/// Bits of `flags`. Others are 0 when written and ignored when read.
pub mod flag {
    /// More parts of this body follow.
    pub const MORE: u16 = 1;
    /// `status` is an error that the platform made, not the function.
    pub const PLATFORM: u16 = 2;
    /// The caller takes an answer in parts.
    pub const PARTS: u16 = 4;
}

/// A private copy of an envelope.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Envelope {
    /// What the message is.
    pub kind: Kind,
    /// See [`flag`].
    pub flags: u16,
    /// HTTP status of an answer, or 0.
    pub status: u16,
    /// A number of `contract/reasons.toml`, or 0.
    pub reason: u16,
    /// Chosen by the caller, unique among its open calls on the channel.
    pub call: u64,
    /// CLOCK_MONOTONIC nanoseconds, 0: none.
    pub deadline: u64,
    /// Trace id (W3C), in its own order of bytes; 0: none.
    pub trace: [u8; 16],
    /// The parent's span id.
    pub span: [u8; 8],
    /// Bytes of the head.
    pub head: u32,
    /// Bytes of the body in this message.
    pub body: u32,
    /// Bytes of the whole body, or [`TOTAL_UNKNOWN`].
    pub total: u64,
}

impl Envelope {
    /// An empty message of this kind.
    pub const fn new(kind: Kind, call: u64) -> Self {
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

    /// Whether a flag is set.
    pub const fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// Where the body begins, from the message's start.
    pub const fn body_at(&self) -> u32 {
        body_at(self.head)
    }

    /// The contract's bytes.
    pub fn to_bytes(&self) -> [u8; SIZE] {
        let mut bytes = [0; SIZE];
        bytes[0] = VERSION;
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

    /// Reads a private copy of an envelope whose message has `length` bytes, as the descriptor said.
    pub fn from_bytes(bytes: &[u8; SIZE], length: u32) -> Result<Self, BadEnvelope> {
        let u16_at = |at: usize| u16::from_le_bytes(bytes[at..at + 2].try_into().expect("2 bytes"));
        let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        if bytes[0] != VERSION {
            return Err(BadEnvelope::Version);
        }
        let envelope = Self {
            kind: Kind::from_number(bytes[1]).ok_or(BadEnvelope::Kind)?,
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
        envelope.check(length)?;
        Ok(envelope)
    }

    fn check(&self, length: u32) -> Result<(), BadEnvelope> {
        if self.head > MAX_HEAD || u64::from(self.body_at()) + u64::from(self.body) > u64::from(length) {
            return Err(BadEnvelope::Length);
        }
        if self.total < u64::from(self.body) { Err(BadEnvelope::Total) } else { Ok(()) }
    }
}

/// Where the body begins after a head of so many bytes, at most [`MAX_HEAD`].
pub const fn body_at(head: u32) -> u32 {
    (SIZE as u32 + head).next_multiple_of(8)
}

/// Why this is no envelope; the sender is at fault or hostile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadEnvelope {
    /// Not version 1.
    #[error("the message has another version than 1")]
    Version,
    /// Not a kind of the contract.
    #[error("the message is of no known kind")]
    Kind,
    /// Head and body do not fit in the message, or the head is over its limit.
    #[error("the message's head and body are longer than the message")]
    Length,
    /// The whole body is shorter than this part of it.
    #[error("the message's body is longer than the whole that it belongs to")]
    Total,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes64() -> impl Strategy<Value = [u8; SIZE]> {
        (any::<[u8; 32]>(), any::<[u8; 32]>(), 0u8..3, 0u8..8, any::<bool>()).prop_map(
            |(a, b, version, kind, small)| {
                let mut bytes = [0; SIZE];
                bytes[..32].copy_from_slice(&a);
                bytes[32..].copy_from_slice(&b);
                (bytes[0], bytes[1]) = (version, kind);
                if small {
                    [50, 51, 54, 55].iter().for_each(|&at| bytes[at] = 0);
                }
                bytes
            },
        )
    }

    proptest! {
        #[test]
        fn what_is_read_is_written_alike(bytes in bytes64(), length in 64u32..1 << 21) {
            if let Ok(envelope) = Envelope::from_bytes(&bytes, length) {
                prop_assert_eq!(envelope.to_bytes(), bytes);
                prop_assert!(envelope.body_at().checked_add(envelope.body).unwrap() <= length);
            }
        }
    }

    #[test]
    fn lengths_that_wrap_are_refused() {
        let mut envelope = Envelope { total: TOTAL_UNKNOWN, body: u32::MAX - 60, ..Envelope::new(Kind::Call, 1) };
        assert_eq!(Envelope::from_bytes(&envelope.to_bytes(), 4096), Err(BadEnvelope::Length));
        (envelope.body, envelope.head) = (0, u32::MAX - 3);
        assert_eq!(Envelope::from_bytes(&envelope.to_bytes(), 4096), Err(BadEnvelope::Length));
    }
}
