//! How a call lies on a stream: `contract/quic.md`. Pure: bytes in, pieces out.
//!
//! An opening of fixed size, a head, then frames until the stream's end: a length of four bytes and so many bytes of the body;
//! with the top bit set, the trailers, which are the last. A body whose length is announced has none. What ends anywhere else was broken off.

mod decoder;

use bytes::{Buf, BufMut, BytesMut};
use nearpath_types::Reason;
use nearpath_types::head::{HeadError, MAX_HEAD_BYTES};

pub use decoder::{FrameDecoder, StreamPiece};

/// The version of this contract.
pub const CALL_PROTOCOL_VERSION: u8 = 1;
/// Bytes of a request's opening, without its head.
pub const REQUEST_OPENING_BYTES: usize = 48;
/// Bytes of an answer's opening, without its head.
pub const RESPONSE_OPENING_BYTES: usize = 24;
/// The body's length is not known before its end.
pub const UNKNOWN_LENGTH: u64 = u64::MAX;
/// The frame holds the trailers.
const TRAILERS_FLAG: u32 = 1 << 31;
/// Longest frame of a body that is written, in bytes.
pub const MAX_FRAME_BYTES: usize = TRAILERS_FLAG as usize - 1;

/// What a caller says first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestOpening {
    /// Nobody waits for an answer.
    pub is_event: bool,
    /// Bytes of the body, or [`UNKNOWN_LENGTH`].
    pub body_length: u64,
    /// Nanoseconds that the caller will wait; 0: it did not say.
    pub timeout_nanos: u64,
    /// Trace id and parent's span id (W3C Trace Context); zeros: none.
    pub trace_id: [u8; 16],
    /// See there.
    pub span_id: [u8; 8],
}

/// What is answered first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResponseOpening {
    /// The platform says so, not the function.
    pub is_platform: bool,
    /// HTTP status.
    pub status: u16,
    /// A number of `contract/reasons.toml`, or 0.
    pub reason_number: u16,
    /// Bytes of the body, or [`UNKNOWN_LENGTH`].
    pub body_length: u64,
}

impl ResponseOpening {
    /// Why the platform refuses or has no answer; `NoConnection`: it is the function's own.
    pub fn refusal_reason(&self) -> Option<Reason> {
        Reason::ALL
            .iter()
            .copied()
            .find(|reason| self.is_platform && *reason as u16 == self.reason_number)
    }
}

/// One of the two.
pub trait CallOpening: Sized {
    /// Bytes, without the head.
    const SIZE_BYTES: usize;
    /// Writes it; `head` bytes of head follow.
    fn write_to(&self, head: u32, out: &mut BytesMut);
    /// Reads it, and the length of the head.
    ///
    /// # Errors
    /// See [`Fault`].
    fn read_from(bytes: &mut &[u8]) -> Result<(Self, u32), FrameError>;
    /// Bytes of the body, or [`UNKNOWN_LENGTH`].
    fn body_length(&self) -> u64;
}

/// Why this is no call, or no whole one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Another version of the contract.
    #[error("the peer speaks version {0} of the call protocol; this is version 1")]
    Version(u8),
    /// A bit is set that has no meaning.
    #[error("the opening has a flag that this version does not know")]
    UnknownFlag,
    /// See [`HeadError`].
    #[error("{0}")]
    Head(#[from] HeadError),
    /// The status is none of HTTP's.
    #[error("the answer's status is {0}")]
    Status(u16),
    /// More or fewer bytes than were announced.
    #[error("the body has another length than was announced")]
    WrongLength,
    /// Something follows the trailers.
    #[error("something follows the trailers")]
    DataAfterTrailers,
    /// The stream ended within a frame, or before the opening was complete.
    #[error("the stream ended too early")]
    Truncated,
}

impl CallOpening for RequestOpening {
    const SIZE_BYTES: usize = REQUEST_OPENING_BYTES;

    fn write_to(&self, head: u32, out: &mut BytesMut) {
        out.put_u8(CALL_PROTOCOL_VERSION);
        out.put_u8(u8::from(self.is_event));
        out.put_u16_le(0);
        out.put_u32_le(head);
        out.put_u64_le(self.body_length);
        out.put_u64_le(self.timeout_nanos);
        out.put_slice(&self.trace_id);
        out.put_slice(&self.span_id);
    }

    fn read_from(bytes: &mut &[u8]) -> Result<(Self, u32), FrameError> {
        let is_event = read_version_and_flag(bytes)?;
        let zero = bytes.get_u16_le();
        let head = bytes.get_u32_le();
        let (body_length, timeout_nanos) = (bytes.get_u64_le(), bytes.get_u64_le());
        let (mut trace_id, mut span_id) = ([0; 16], [0; 8]);
        bytes.copy_to_slice(&mut trace_id);
        bytes.copy_to_slice(&mut span_id);
        if zero != 0 {
            return Err(FrameError::UnknownFlag);
        }
        Ok((
            Self {
                is_event,
                body_length,
                timeout_nanos,
                trace_id,
                span_id,
            },
            head,
        ))
    }

    fn body_length(&self) -> u64 {
        self.body_length
    }
}

impl CallOpening for ResponseOpening {
    const SIZE_BYTES: usize = RESPONSE_OPENING_BYTES;

    fn write_to(&self, head: u32, out: &mut BytesMut) {
        out.put_u8(CALL_PROTOCOL_VERSION);
        out.put_u8(u8::from(self.is_platform));
        out.put_u16_le(self.status);
        out.put_u32_le(head);
        out.put_u64_le(self.body_length);
        out.put_u16_le(self.reason_number);
        out.put_bytes(0, 6);
    }

    fn read_from(bytes: &mut &[u8]) -> Result<(Self, u32), FrameError> {
        let is_platform = read_version_and_flag(bytes)?;
        let status = bytes.get_u16_le();
        let head = bytes.get_u32_le();
        let body_length = bytes.get_u64_le();
        let reason_number = bytes.get_u16_le();
        let zero = bytes.get_uint_le(6);
        if zero != 0 {
            return Err(FrameError::UnknownFlag);
        }
        if !(100..1000).contains(&status) {
            return Err(FrameError::Status(status));
        }
        Ok((
            Self {
                is_platform,
                status,
                reason_number,
                body_length,
            },
            head,
        ))
    }

    fn body_length(&self) -> u64 {
        self.body_length
    }
}

fn read_version_and_flag(bytes: &mut &[u8]) -> Result<bool, FrameError> {
    match (bytes.get_u8(), bytes.get_u8()) {
        (CALL_PROTOCOL_VERSION, flag @ (0 | 1)) => Ok(flag == 1),
        (CALL_PROTOCOL_VERSION, _) => Err(FrameError::UnknownFlag),
        (other, _) => Err(FrameError::Version(other)),
    }
}

/// The four bytes before so many of a body.
pub fn data_frame_header(length: usize) -> [u8; 4] {
    let length = u32::try_from(length.min(MAX_FRAME_BYTES)).expect("it was made small enough");
    length.to_le_bytes()
}

/// The four bytes before trailers.
pub fn trailers_frame_header(length: usize) -> [u8; 4] {
    let length = u32::try_from(length.min(MAX_HEAD_BYTES as usize)).expect("a head is small");
    (length | TRAILERS_FLAG).to_le_bytes()
}
