//! Frames between a node and the watchdog of one of its instances: `contract/identity.md`.
//!
//! The node sends the instance's identity ([`NodeFrame::Provision`]), the functions that it may
//! call directly ([`CalleeEntry`]), and its half of handshakes in memory. The watchdog sends its
//! own halves and its counters. Pure: bytes in, values out. The node trusts nothing that a watchdog
//! writes: every length has a bound, and an excess makes the frame invalid.

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

/// Maximum bytes of a node's frame without its length: room for some thousand sessions.
pub const MAX_NODE_FRAME_BYTES: usize = 8 << 20;
/// Maximum bytes of a watchdog's frame, likewise.
pub const MAX_WATCHDOG_FRAME_BYTES: usize = 64 << 10;
/// Maximum number of functions that one function may call directly.
pub const MAX_CALLEES: usize = 1024;
/// Maximum number of a callee's instances that are listed: a caller draws only two of them.
pub const MAX_PEERS: usize = 256;

/// Kinds of frames.
mod kind {
    pub(super) const PROVISION: u8 = 1;
    pub(super) const CALLEES: u8 = 2;
    pub(super) const HANDSHAKE: u8 = 3;
    pub(super) const TALLIES: u8 = 4;
    pub(super) const SOCKET: u8 = 5;
}

/// Frame of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeFrame<'a> {
    /// Identity of the instance, or its change: the whole frame, which `Provision` of
    /// `nearpath-wire` reads.
    Provision(&'a [u8]),
    /// Functions that it may call directly; replaces the earlier list.
    Callees(Vec<CalleeEntry>),
    /// The callee's half of a handshake in memory.
    Handshake(HandshakeMessage),
    /// UDP socket of the machine, which comes as a descriptor with this frame.
    Socket,
}

/// Frame of a watchdog.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchdogFrame {
    /// The caller's half of a handshake in memory.
    Handshake(HandshakeMessage),
    /// Counters since the last such frame.
    Tallies(Vec<CallTally>),
}

/// Error of an invalid frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum IdentityFrameError {
    /// Longer than its writer may send.
    #[error("frame of {0} bytes exceeds the limit")]
    TooLong(usize),
    /// Of another release.
    #[error("unknown frame kind {0}: install node and watchdog of one release")]
    Kind(u8),
    /// Ends within a field, or goes on after the last.
    #[error("frame length does not match its fields")]
    Length,
    /// More entries than allowed, or a datagram that is too long.
    #[error("frame exceeds a limit of the contract")]
    OverLimit,
    /// Invalid name.
    #[error("frame contains an invalid name")]
    Name,
    /// Number without a meaning.
    #[error("frame contains a number without a meaning")]
    Number,
}

impl From<IdentityFrameError> for std::io::Error {
    fn from(bad: IdentityFrameError) -> Self {
        Self::new(std::io::ErrorKind::InvalidData, bad)
    }
}

impl<'a> NodeFrame<'a> {
    /// Reads a frame without its length.
    ///
    /// # Errors
    /// See [`IdentityFrameError`].
    pub fn read(frame: &'a [u8]) -> Result<Self, IdentityFrameError> {
        let (kind, rest) = frame.split_first().ok_or(IdentityFrameError::Length)?;
        match *kind {
            // Whole, because its reader is in `nearpath-wire`, which builds on this crate.
            kind::PROVISION => Ok(Self::Provision(frame)),
            kind::CALLEES => FrameReader::read_all(rest, callees::read_callees).map(Self::Callees),
            kind::HANDSHAKE => {
                FrameReader::read_all(rest, handshake::read_handshake).map(Self::Handshake)
            }
            kind::SOCKET => FrameReader::read_all(rest, |_| Ok(Self::Socket)),
            // Skipping an unknown frame could lose a revocation.
            other => Err(IdentityFrameError::Kind(other)),
        }
    }
}

impl WatchdogFrame {
    /// Reads a frame without its length.
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

/// Encodes callees as a frame. Entries beyond the bounds are left out.
pub fn callees_frame(all: &[CalleeEntry]) -> Vec<u8> {
    with_length(kind::CALLEES, |out| callees::write_callees(all, out))
}

/// Encodes the datagrams of one half as a frame.
pub fn handshake_frame(message: &HandshakeMessage) -> Vec<u8> {
    with_length(kind::HANDSHAKE, |out| {
        handshake::write_handshake(message, out)
    })
}

/// Encodes counters as a frame.
pub fn tallies_frame(all: &[CallTally]) -> Vec<u8> {
    with_length(kind::TALLIES, |out| call_tally::write_tallies(all, out))
}

/// Returns the frame that comes with a socket.
pub fn socket_frame() -> Vec<u8> {
    with_length(kind::SOCKET, |_| {})
}

fn with_length(kind: u8, body: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    // The length is known only after the body, so its bytes are filled in last.
    let mut out = vec![0, 0, 0, 0, kind];
    body(&mut out);
    let length = u32::try_from(out.len() - 4).expect("bounded far below 4 GiB");
    out[..4].copy_from_slice(&length.to_le_bytes());
    out
}

#[cfg(test)]
mod tests;
