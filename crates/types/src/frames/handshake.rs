//! Datagrams of one handshake in memory, from one half to the other.

use super::BadFrame;
use super::bytes::{Reader, put_many, put_text};

/// Most datagrams of one step.
pub const DATAGRAMS: usize = 16;
/// Longest datagram in bytes.
pub const DATAGRAM: usize = 2048;

/// One step. Each caller has at most one handshake with an incarnation at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handshake {
    /// The incarnation that is to be called.
    pub callee: String,
    /// For the other half; none: this half has ended.
    pub datagrams: Vec<Vec<u8>>,
}

pub(super) fn write(half: &Handshake, out: &mut Vec<u8>) {
    put_text(&half.callee, out);
    put_many(&half.datagrams, DATAGRAMS, out, |datagram, out| {
        let datagram = &datagram[..datagram.len().min(DATAGRAM)];
        out.extend((datagram.len() as u16).to_le_bytes());
        out.extend(datagram);
    });
}

pub(super) fn read(from: &mut Reader<'_>) -> Result<Handshake, BadFrame> {
    let callee = from.text()?.to_owned();
    let datagrams = from.many(DATAGRAMS, |from| match from.u16()?.into() {
        length if length > DATAGRAM => Err(BadFrame::TooMuch),
        length => Ok(from.bytes(length)?.to_vec()),
    })?;
    Ok(Handshake { callee, datagrams })
}
