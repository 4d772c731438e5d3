//! Frames between a node and the watchdog of one of its instances: `contract/identity.md`.
//!
//! The node says who the instance is ([`NodeFrame::Provision`]), whom it may call directly ([`CalleeEntry`]), and answers its handshakes in
//! memory; the watchdog asks for these and tells what it counted. Pure: bytes in, words out. The node believes nothing of
//! what a watchdog writes: every length has a bound, and what does not fit ends the frame.

mod call_tally;
mod callees;
mod codec;
mod frame_buffer;
mod handshake;

pub use call_tally::{CallTally, LATENCY_BUCKETS};
pub use callees::{CalleeEntry, CalleePeer};
pub use frame_buffer::FrameBuffer;
pub use handshake::{HandshakeMessage, MAX_DATAGRAM_BYTES, MAX_DATAGRAMS};

use codec::FrameReader;

/// Longest frame that a node writes, in bytes, without its length: some thousand sessions.
pub const MAX_NODE_FRAME_BYTES: usize = 8 << 20;
/// Longest frame that a watchdog writes, likewise.
pub const MAX_WATCHDOG_FRAME_BYTES: usize = 64 << 10;
/// Most functions that one function may call directly.
pub const MAX_CALLEES: usize = 1024;
/// Most instances of one of them that are told: a caller draws two of them anyway.
pub const MAX_PEERS: usize = 256;

/// What a frame is.
mod kind {
    pub(super) const PROVISION: u8 = 1;
    pub(super) const CALLEES: u8 = 2;
    pub(super) const HANDSHAKE: u8 = 3;
    pub(super) const TALLIES: u8 = 4;
}

/// What a node says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeFrame<'a> {
    /// Who the instance is, or what of it changed: the whole frame, which `wire::early::Provision` reads.
    Provision(&'a [u8]),
    /// Whom it may call directly; replaces what was told before.
    Callees(Vec<CalleeEntry>),
    /// The other half of a handshake in memory.
    Handshake(HandshakeMessage),
}

/// What a watchdog says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchdogFrame {
    /// Its half of a handshake in memory.
    Handshake(HandshakeMessage),
    /// What was counted since the last time.
    Tallies(Vec<CallTally>),
}

/// Why a frame cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum IdentityFrameError {
    /// Longer than its writer may make it.
    #[error("a frame of {0} bytes is too long")]
    TooLong(usize),
    /// Of another release.
    #[error("a frame of kind {0} is not known: install node and watchdog of one release")]
    Kind(u8),
    /// It ends within a field, or goes on after the last.
    #[error("the frame has another length than its fields")]
    Length,
    /// More entries than there may be, or a datagram that is too long.
    #[error("the frame holds too much")]
    OverLimit,
    /// A name that is none.
    #[error("the frame holds a name that is none")]
    Name,
    /// A number that has no meaning.
    #[error("the frame holds a number that has no meaning")]
    Number,
}

impl From<IdentityFrameError> for std::io::Error {
    fn from(bad: IdentityFrameError) -> Self {
        Self::new(std::io::ErrorKind::InvalidData, bad)
    }
}

impl<'a> NodeFrame<'a> {
    /// What follows a frame's length.
    ///
    /// # Errors
    /// See [`IdentityFrameError`].
    pub fn read(frame: &'a [u8]) -> Result<Self, IdentityFrameError> {
        let (kind, rest) = frame.split_first().ok_or(IdentityFrameError::Length)?;
        match *kind {
            kind::PROVISION => Ok(Self::Provision(frame)),
            kind::CALLEES => FrameReader::read_all(rest, callees::read_callees).map(Self::Callees),
            kind::HANDSHAKE => {
                FrameReader::read_all(rest, handshake::read_handshake).map(Self::Handshake)
            }
            other => Err(IdentityFrameError::Kind(other)),
        }
    }
}

impl WatchdogFrame {
    /// What follows a frame's length.
    ///
    /// # Errors
    /// See [`IdentityFrameError`].
    pub fn read(frame: &[u8]) -> Result<Self, IdentityFrameError> {
        let (kind, rest) = frame.split_first().ok_or(IdentityFrameError::Length)?;
        match *kind {
            kind::HANDSHAKE => {
                FrameReader::read_all(rest, handshake::read_handshake).map(Self::Handshake)
            }
            kind::TALLIES => {
                FrameReader::read_all(rest, call_tally::read_tallies).map(Self::Tallies)
            }
            other => Err(IdentityFrameError::Kind(other)),
        }
    }
}

/// A list of callees as a frame. What is beyond the bounds is left out.
pub fn callees_frame(all: &[CalleeEntry]) -> Vec<u8> {
    with_length(kind::CALLEES, |out| callees::write_callees(all, out))
}

/// A half's datagrams as a frame.
pub fn handshake_frame(message: &HandshakeMessage) -> Vec<u8> {
    with_length(kind::HANDSHAKE, |out| {
        handshake::write_handshake(message, out)
    })
}

/// Counters as a frame.
pub fn tallies_frame(all: &[CallTally]) -> Vec<u8> {
    with_length(kind::TALLIES, |out| call_tally::write_tallies(all, out))
}

fn with_length(kind: u8, body: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = vec![0, 0, 0, 0, kind];
    body(&mut out);
    let length = u32::try_from(out.len() - 4).expect("bounded far below 4 GiB");
    out[..4].copy_from_slice(&length.to_le_bytes());
    out
}

#[cfg(test)]
mod tests;
