//! How a call lies on a stream: `contract/quic.md`. Pure: bytes in, pieces out.
//!
//! An opening of fixed size, a head, then frames until the stream's end: a length of four bytes and so many bytes of the body;
//! with the top bit set, the trailers, which are the last. A body whose length is announced has none. What ends anywhere else was broken off.

mod decoder;

use bytes::{Buf, BufMut, BytesMut};
use nearpath_types::Reason;
use nearpath_types::head::{BadHead, MAX_HEAD};

pub use decoder::{Decoder, Piece};

/// The version of this contract.
pub const VERSION: u8 = 1;
/// Bytes of a request's opening, without its head.
pub const ASKED: usize = 48;
/// Bytes of an answer's opening, without its head.
pub const ANSWERED: usize = 24;
/// The body's length is not known before its end.
pub const UNKNOWN: u64 = u64::MAX;
/// The frame holds the trailers.
const TRAILERS: u32 = 1 << 31;
/// Longest frame of a body that is written, in bytes.
pub const LONGEST: usize = TRAILERS as usize - 1;

/// What a caller says first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// Nobody waits for an answer.
    pub event: bool,
    /// Bytes of the body, or [`UNKNOWN`].
    pub total: u64,
    /// Nanoseconds that the caller will wait; 0: it did not say.
    pub patience: u64,
    /// Trace id and parent's span id (W3C Trace Context); zeros: none.
    pub trace: [u8; 16],
    /// See there.
    pub span: [u8; 8],
}

/// What is answered first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answered {
    /// The platform says so, not the function.
    pub platform: bool,
    /// HTTP status.
    pub status: u16,
    /// A number of `contract/reasons.toml`, or 0.
    pub reason: u16,
    /// Bytes of the body, or [`UNKNOWN`].
    pub total: u64,
}

impl Answered {
    /// Why the platform refuses or has no answer; `None`: it is the function's own.
    pub fn refusal(&self) -> Option<Reason> {
        Reason::ALL.iter().copied().find(|reason| self.platform && *reason as u16 == self.reason)
    }
}

/// One of the two.
pub trait Opening: Sized {
    /// Bytes, without the head.
    const SIZE: usize;
    /// Writes it; `head` bytes of head follow.
    fn write(&self, head: u32, out: &mut BytesMut);
    /// Reads it, and the length of the head.
    ///
    /// # Errors
    /// See [`Fault`].
    fn read(bytes: &mut &[u8]) -> Result<(Self, u32), Fault>;
    /// Bytes of the body, or [`UNKNOWN`].
    fn total(&self) -> u64;
}

/// Why this is no call, or no whole one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Another version of the contract.
    #[error("the peer speaks version {0} of the call protocol; this is version 1")]
    Version(u8),
    /// A bit is set that has no meaning.
    #[error("the opening has a flag that this version does not know")]
    Flag,
    /// See [`BadHead`].
    #[error("{0}")]
    Head(#[from] BadHead),
    /// The status is none of HTTP's.
    #[error("the answer's status is {0}")]
    Status(u16),
    /// More or fewer bytes than were announced.
    #[error("the body has another length than was announced")]
    Length,
    /// Something follows the trailers.
    #[error("something follows the trailers")]
    AfterTrailers,
    /// The stream ended within a frame, or before the opening was complete.
    #[error("the stream ended too early")]
    Cut,
}

impl Opening for Asked {
    const SIZE: usize = ASKED;

    fn write(&self, head: u32, out: &mut BytesMut) {
        out.put_u8(VERSION);
        out.put_u8(u8::from(self.event));
        out.put_u16_le(0);
        out.put_u32_le(head);
        out.put_u64_le(self.total);
        out.put_u64_le(self.patience);
        out.put_slice(&self.trace);
        out.put_slice(&self.span);
    }

    fn read(bytes: &mut &[u8]) -> Result<(Self, u32), Fault> {
        let event = version_and_flag(bytes)?;
        let zero = bytes.get_u16_le();
        let head = bytes.get_u32_le();
        let (total, patience) = (bytes.get_u64_le(), bytes.get_u64_le());
        let (mut trace, mut span) = ([0; 16], [0; 8]);
        bytes.copy_to_slice(&mut trace);
        bytes.copy_to_slice(&mut span);
        if zero != 0 {
            return Err(Fault::Flag);
        }
        Ok((Self { event, total, patience, trace, span }, head))
    }

    fn total(&self) -> u64 {
        self.total
    }
}

impl Opening for Answered {
    const SIZE: usize = ANSWERED;

    fn write(&self, head: u32, out: &mut BytesMut) {
        out.put_u8(VERSION);
        out.put_u8(u8::from(self.platform));
        out.put_u16_le(self.status);
        out.put_u32_le(head);
        out.put_u64_le(self.total);
        out.put_u16_le(self.reason);
        out.put_bytes(0, 6);
    }

    fn read(bytes: &mut &[u8]) -> Result<(Self, u32), Fault> {
        let platform = version_and_flag(bytes)?;
        let status = bytes.get_u16_le();
        let head = bytes.get_u32_le();
        let total = bytes.get_u64_le();
        let reason = bytes.get_u16_le();
        let zero = bytes.get_uint_le(6);
        if zero != 0 {
            return Err(Fault::Flag);
        }
        if !(100..1000).contains(&status) {
            return Err(Fault::Status(status));
        }
        Ok((Self { platform, status, reason, total }, head))
    }

    fn total(&self) -> u64 {
        self.total
    }
}

fn version_and_flag(bytes: &mut &[u8]) -> Result<bool, Fault> {
    match (bytes.get_u8(), bytes.get_u8()) {
        (VERSION, flag @ (0 | 1)) => Ok(flag == 1),
        (VERSION, _) => Err(Fault::Flag),
        (other, _) => Err(Fault::Version(other)),
    }
}

/// The four bytes before so many of a body.
pub fn data(length: usize) -> [u8; 4] {
    let length = u32::try_from(length.min(LONGEST)).expect("it was made small enough");
    length.to_le_bytes()
}

/// The four bytes before trailers.
pub fn trailers(length: usize) -> [u8; 4] {
    let length = u32::try_from(length.min(MAX_HEAD as usize)).expect("a head is small");
    (length | TRAILERS).to_le_bytes()
}
