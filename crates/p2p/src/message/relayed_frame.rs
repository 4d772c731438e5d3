//! Frames of a stream that a control connection relays: one binary WebSocket frame each.

use bytes::{BufMut, Bytes, BytesMut};

use super::{HexBytes, SessionIdHex};

/// Bytes of the header: session, number, acknowledgement (`contract/rendezvous.md`, "Relayed frames").
const HEADER_BYTES: usize = 32;

/// Largest payload, in bytes.
pub const MAX_PAYLOAD_BYTES: usize = 32 << 10;

/// Largest binary frame of a control connection, in bytes.
pub const MAX_RELAYED_FRAME_BYTES: usize = HEADER_BYTES + MAX_PAYLOAD_BYTES;

/// Numbered frame of the stream between two workers. The rendezvous reads its session only.
#[derive(Clone, PartialEq, Eq)]
pub struct RelayedFrame {
    /// Session of the stream.
    pub session: SessionIdHex,
    /// Number of the frame, from the stream's beginning.
    pub number: u64,
    /// Number of frames received from the other side.
    pub acknowledged: u64,
    /// Payload: 1 to [`MAX_PAYLOAD_BYTES`] bytes.
    pub bytes: Bytes,
}

impl RelayedFrame {
    /// Decodes a frame without copying its payload. `None`: too short or too long.
    pub fn decode(frame: &Bytes) -> Option<Self> {
        let session = Self::session_of(frame)?;
        let number = |at: usize| Some(u64::from_le_bytes(frame.get(at..at + 8)?.try_into().ok()?));
        Some(Self {
            session,
            number: number(16)?,
            acknowledged: number(24)?,
            bytes: frame.slice(HEADER_BYTES..),
        })
    }

    /// Returns the session of a frame. `None`: no relayed frame.
    pub fn session_of(frame: &[u8]) -> Option<SessionIdHex> {
        // An empty frame would be acknowledged without carrying anything.
        let has_bytes = HEADER_BYTES < frame.len() && frame.len() <= MAX_RELAYED_FRAME_BYTES;
        let id: [u8; 16] = frame.get(..16)?.try_into().ok()?;
        has_bytes.then_some(HexBytes(id))
    }

    /// Encodes the frame.
    pub fn encode(&self) -> Bytes {
        let mut frame = BytesMut::with_capacity(HEADER_BYTES + self.bytes.len());
        frame.put_slice(&self.session.0);
        frame.put_u64_le(self.number);
        frame.put_u64_le(self.acknowledged);
        frame.put_slice(&self.bytes);
        frame.freeze()
    }
}

/// Frames below this size are copied; measured against the 64 KiB that tungstenite reads at once.
const MIN_SHARED_FRAME_BYTES: usize = 8 << 10;

/// Returns a frame that keeps at most a few times its own size in memory.
///
/// Frames read together share one buffer, which lives until the last of them is dropped.
pub fn detach_small_frame(frame: Bytes) -> Bytes {
    if frame.len() < MIN_SHARED_FRAME_BYTES {
        Bytes::copy_from_slice(&frame)
    } else {
        frame
    }
}

impl std::fmt::Debug for RelayedFrame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "frame {} with {} bytes, acknowledges {}",
            self.number,
            self.bytes.len(),
            self.acknowledged
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_frame_does_not_keep_its_read_buffer() {
        let read = Bytes::from(vec![7; 100_000]);
        let [small, large] = [1000, 30_000].map(|len| read.slice(..len));
        assert_eq!(
            (
                &detach_small_frame(small.clone()),
                &detach_small_frame(large.clone())
            ),
            (&small, &large)
        );
        assert_ne!(detach_small_frame(small.clone()).as_ptr(), small.as_ptr());
        assert_eq!(detach_small_frame(large.clone()).as_ptr(), large.as_ptr());
    }

    #[test]
    fn a_relayed_frame_decodes_to_what_was_encoded_and_other_bytes_do_not() {
        let relayed = RelayedFrame {
            session: HexBytes([7; 16]),
            number: 3,
            acknowledged: u64::MAX,
            bytes: Bytes::from_static(b"bytes"),
        };
        let frame = relayed.encode();
        assert_eq!(
            (RelayedFrame::decode(&frame), frame.len()),
            (Some(relayed.clone()), HEADER_BYTES + 5)
        );
        assert_eq!(RelayedFrame::session_of(&frame), Some(relayed.session));
        let frame_of = |bytes: usize| Bytes::from(vec![0; HEADER_BYTES + bytes]);
        assert_eq!(
            RelayedFrame::decode(&frame.slice(..HEADER_BYTES)),
            None,
            "no bytes"
        );
        assert_eq!(
            (0..HEADER_BYTES).find(|short| RelayedFrame::decode(&frame.slice(..*short)).is_some()),
            None
        );
        assert!(
            RelayedFrame::decode(&frame_of(MAX_PAYLOAD_BYTES)).is_some()
                && RelayedFrame::decode(&frame_of(MAX_PAYLOAD_BYTES + 1)).is_none()
        );
    }
}
