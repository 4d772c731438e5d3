//! Framing of a call on a stream, `contract/quic.md`. Pure: bytes in, pieces out.
//!
//! A stream holds an opening of fixed size, a head, then frames until its end. A frame is a length
//! of four bytes and that many bytes of the body. With the top bit set it holds the trailers, which
//! are last. A body of announced length has no trailers. A stream that ends anywhere else is
//! truncated.

mod decoder;

use bytes::{Buf, BufMut, BytesMut};
use nearpath_types::Reason;
use nearpath_types::head::{HeadError, MAX_HEAD_BYTES};

pub use decoder::{FrameDecoder, StreamPiece};

/// Version of the call protocol.
pub const CALL_PROTOCOL_VERSION: u8 = 1;
/// Size of a request's opening without its head in bytes.
pub const REQUEST_OPENING_BYTES: usize = 48;
/// Size of a response's opening without its head in bytes.
pub const RESPONSE_OPENING_BYTES: usize = 24;
/// Body length that is unknown until the body's end.
pub const UNKNOWN_LENGTH: u64 = u64::MAX;
/// Flag of a frame that holds the trailers.
const TRAILERS_FLAG: u32 = 1 << 31;
/// Maximum size of a body frame that is written, in bytes.
pub const MAX_FRAME_BYTES: usize = TRAILERS_FLAG as usize - 1;

/// Opening of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestOpening {
    /// The caller wants no response.
    pub is_event: bool,
    /// Bytes of the body, or [`UNKNOWN_LENGTH`].
    pub body_length: u64,
    /// Nanoseconds that the caller waits; 0: unknown.
    pub timeout_nanos: u64,
    /// Trace id (W3C Trace Context); zeros: none.
    pub trace_id: [u8; 16],
    /// Parent's span id; zeros: none.
    pub span_id: [u8; 8],
}

/// Opening of a response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResponseOpening {
    /// The platform responds, not the function.
    pub is_platform: bool,
    /// HTTP status.
    pub status: u16,
    /// Number from `contract/reasons.toml`, or 0.
    pub reason_number: u16,
    /// Bytes of the body, or [`UNKNOWN_LENGTH`].
    pub body_length: u64,
}

impl ResponseOpening {
    /// Reason why the platform refuses or has no response; `None`: the function responded.
    pub fn refusal_reason(&self) -> Option<Reason> {
        Reason::ALL
            .iter()
            .copied()
            .find(|reason| self.is_platform && *reason as u16 == self.reason_number)
    }
}

/// Opening of a request or response.
pub trait CallOpening: Sized {
    /// Size without the head in bytes.
    const SIZE_BYTES: usize;
    /// Writes the opening; `head` bytes of head follow it.
    fn write_to(&self, head: u32, out: &mut BytesMut);
    /// Reads the opening, and the length of the head.
    ///
    /// # Errors
    /// See [`FrameError`].
    fn read_from(bytes: &mut &[u8]) -> Result<(Self, u32), FrameError>;
    /// Bytes of the body, or [`UNKNOWN_LENGTH`].
    fn body_length(&self) -> u64;
}

/// Reasons why a stream is not a valid call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The peer uses another version of the protocol.
    #[error("unsupported call protocol version {0}: expected 1")]
    Version(u8),
    /// An unknown flag is set.
    #[error("unknown flag in the opening")]
    UnknownFlag,
    /// The head is invalid, see [`BadHead`].
    #[error("{0}")]
    Head(#[from] HeadError),
    /// The status is not an HTTP status.
    #[error("invalid response status {0}")]
    Status(u16),
    /// The body is longer or shorter than announced.
    #[error("the body length differs from the announced one")]
    WrongLength,
    /// Data follows the trailers.
    #[error("unexpected data after the trailers")]
    DataAfterTrailers,
    /// The stream ended inside a frame, or before the opening was complete.
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
        // Reserved bytes must be 0, so that a later version can use them.
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

/// Header of a data frame of `length` bytes.
pub fn data_frame_header(length: usize) -> [u8; 4] {
    let length = u32::try_from(length.min(MAX_FRAME_BYTES)).expect("it was made small enough");
    length.to_le_bytes()
}

/// Header of a trailers frame of `length` bytes.
pub fn trailers_frame_header(length: usize) -> [u8; 4] {
    let length = u32::try_from(length.min(MAX_HEAD_BYTES as usize)).expect("a head is small");
    (length | TRAILERS_FLAG).to_le_bytes()
}
