//! Datagrams of a handshake in memory, from one half to the other.

use super::IdentityFrameError;
use super::codec::{FrameReader, put_list, put_text};

/// Maximum number of datagrams of one step.
pub const MAX_DATAGRAMS: usize = 16;
/// Maximum bytes of one datagram.
pub const MAX_DATAGRAM_BYTES: usize = 2048;

/// Step of a handshake. Each caller has at most one handshake with an incarnation at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandshakeMessage {
    /// Incarnation to call.
    pub callee: String,
    /// Datagrams for the other half; none: this half has given up.
    pub datagrams: Vec<Vec<u8>>,
}

pub(super) fn write_handshake(message: &HandshakeMessage, out: &mut Vec<u8>) {
    put_text(&message.callee, out);
    put_list(&message.datagrams, MAX_DATAGRAMS, out, |datagram, out| {
        // Cut instead of refused: QUIC drops a broken packet, and the handshake fails by itself.
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
        // Before the copy, so that a length alone costs nothing.
        length if length > MAX_DATAGRAM_BYTES => Err(IdentityFrameError::OverLimit),
        length => Ok(from.take_bytes(length)?.to_vec()),
    })?;
    Ok(HandshakeMessage { callee, datagrams })
}
