//! Frames between a node and the watchdog of one of its instances: `contract/identity.md`.
//!
//! The node says who the instance is ([`FromNode::Provision`]), whom it may call directly ([`Callee`]), and answers its handshakes in
//! memory; the watchdog asks for these and tells what it counted. Pure: bytes in, words out. The node believes nothing of
//! what a watchdog writes: every length has a bound, and what does not fit ends the frame.

mod bytes;
mod callees;
mod handshake;
mod pieces;
mod tally;

pub use callees::{Callee, Peer};
pub use handshake::{DATAGRAM, DATAGRAMS, Handshake};
pub use pieces::Pieces;
pub use tally::{BUCKETS, Tally};

use bytes::Reader;

/// Longest frame that a node writes, in bytes, without its length: some thousand sessions.
pub const LONGEST: usize = 8 << 20;
/// Longest frame that a watchdog writes, likewise.
pub const LONGEST_BACK: usize = 64 << 10;
/// Most functions that one function may call directly.
pub const MOST_CALLEES: usize = 1024;
/// Most instances of one of them that are told: a caller draws two of them anyway.
pub const MOST_PEERS: usize = 256;

/// What a frame is.
mod kind {
    pub(super) const PROVISION: u8 = 1;
    pub(super) const CALLEES: u8 = 2;
    pub(super) const HANDSHAKE: u8 = 3;
    pub(super) const TALLIES: u8 = 4;
}

/// What a node says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FromNode<'a> {
    /// Who the instance is, or what of it changed: the whole frame, which `wire::early::Provision` reads.
    Provision(&'a [u8]),
    /// Whom it may call directly; replaces what was told before.
    Callees(Vec<Callee>),
    /// The other half of a handshake in memory.
    Handshake(Handshake),
}

/// What a watchdog says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FromWatchdog {
    /// Its half of a handshake in memory.
    Handshake(Handshake),
    /// What was counted since the last time.
    Tallies(Vec<Tally>),
}

/// Why a frame cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadFrame {
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
    TooMuch,
    /// A name that is none.
    #[error("the frame holds a name that is none")]
    Name,
    /// A number that has no meaning.
    #[error("the frame holds a number that has no meaning")]
    Number,
}

impl From<BadFrame> for std::io::Error {
    fn from(bad: BadFrame) -> Self {
        Self::new(std::io::ErrorKind::InvalidData, bad)
    }
}

impl<'a> FromNode<'a> {
    /// What follows a frame's length.
    ///
    /// # Errors
    /// See [`BadFrame`].
    pub fn read(frame: &'a [u8]) -> Result<Self, BadFrame> {
        let (kind, rest) = frame.split_first().ok_or(BadFrame::Length)?;
        match *kind {
            kind::PROVISION => Ok(Self::Provision(frame)),
            kind::CALLEES => Reader::whole(rest, callees::read).map(Self::Callees),
            kind::HANDSHAKE => Reader::whole(rest, handshake::read).map(Self::Handshake),
            other => Err(BadFrame::Kind(other)),
        }
    }
}

impl FromWatchdog {
    /// What follows a frame's length.
    ///
    /// # Errors
    /// See [`BadFrame`].
    pub fn read(frame: &[u8]) -> Result<Self, BadFrame> {
        let (kind, rest) = frame.split_first().ok_or(BadFrame::Length)?;
        match *kind {
            kind::HANDSHAKE => Reader::whole(rest, handshake::read).map(Self::Handshake),
            kind::TALLIES => Reader::whole(rest, tally::read).map(Self::Tallies),
            other => Err(BadFrame::Kind(other)),
        }
    }
}

/// A list of callees as a frame. What is beyond the bounds is left out.
pub fn callees(all: &[Callee]) -> Vec<u8> {
    framed(kind::CALLEES, |out| callees::write(all, out))
}

/// A half's datagrams as a frame.
pub fn handshake(half: &Handshake) -> Vec<u8> {
    framed(kind::HANDSHAKE, |out| handshake::write(half, out))
}

/// Counters as a frame.
pub fn tallies(all: &[Tally]) -> Vec<u8> {
    framed(kind::TALLIES, |out| tally::write(all, out))
}

fn framed(kind: u8, body: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = vec![0, 0, 0, 0, kind];
    body(&mut out);
    let length = u32::try_from(out.len() - 4).expect("bounded far below 4 GiB");
    out[..4].copy_from_slice(&length.to_le_bytes());
    out
}

#[cfg(test)]
mod tests;
