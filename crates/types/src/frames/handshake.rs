//! Frame `handshake` between a watchdog and its node (`contract/identity.md`).
//!
//! A caller's watchdog makes a QUIC handshake with its node, which answers in place of the callee.
//! The frames carry the datagrams of both sides.

use super::IdentityFrameError;
use super::codec::{FrameReader, put_list, put_text};

/// Maximum number of datagrams in one frame (`contract/identity.md`).
pub const MAX_DATAGRAMS: usize = 16;
/// Maximum bytes of one datagram: more than an Ethernet frame, the largest that either side sends.
pub const MAX_DATAGRAM_BYTES: usize = 2048;

/// Datagrams of one side of a handshake. Each caller has at most one handshake with an incarnation
/// at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandshakeMessage {
    /// Name of the incarnation to call.
    pub callee: String,
    /// Datagrams for the other side; an empty list means that this side has given up.
    pub datagrams: Vec<Vec<u8>>,
}

pub(super) fn write_handshake(message: &HandshakeMessage, out: &mut Vec<u8>) {
    put_text(&message.callee, out);
    put_list(&message.datagrams, MAX_DATAGRAMS, out, |datagram, out| {
        // Truncated, not refused: QUIC drops a truncated packet, and the handshake fails.
        let datagram = &datagram[..datagram.len().min(MAX_DATAGRAM_BYTES)];
        out.extend((datagram.len() as u16).to_le_bytes());
        out.extend(datagram);
    });
}

pub(super) fn read_handshake(
    from: &mut FrameReader<'_>,
) -> Result<HandshakeMessage, IdentityFrameError> {
    let callee = from.take_text()?.to_owned();
    let datagrams = from.take_list(MAX_DATAGRAMS, |from| match from.u16()?.into() {
        // Before the copy: a length alone must not cost memory.
        length if length > MAX_DATAGRAM_BYTES => Err(IdentityFrameError::OverLimit),
        length => Ok(from.take_bytes(length)?.to_vec()),
    })?;
    Ok(HandshakeMessage { callee, datagrams })
}
