//! Frames of an edge that are in flight.

use std::collections::VecDeque;

/// The producing end of an edge: numbers its frames and counts their bytes until they are
/// acknowledged.
///
/// A batch larger than the window is sent alone, so every batch gets through. Barriers and ends
/// have size 0: they never wait for room.
#[derive(Clone, Debug)]
pub struct SendWindow {
    next_sequence: u64,
    window: usize,
    unacked_bytes: usize,
    /// Number and bytes of each frame, oldest first.
    unacked: VecDeque<(u64, usize)>,
}

/// Acknowledgement of a frame that was never sent or was acknowledged before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unexpected ack of frame {0}: it is not in flight")]
pub struct UnexpectedAck(pub u64);

impl SendWindow {
    /// Starts with the number of the first frame and the size of the window in bytes.
    pub fn new(next_sequence: u64, window: usize) -> Self {
        Self {
            next_sequence,
            window,
            unacked_bytes: 0,
            unacked: VecDeque::new(),
        }
    }

    /// Number of the next frame.
    pub fn next_sequence(&self) -> u64 {
        self.next_sequence
    }

    /// Bytes that are not acknowledged.
    pub fn unacked_bytes(&self) -> usize {
        self.unacked_bytes
    }

    /// Sets the window that the consumer announced.
    pub fn set_window(&mut self, window: usize) {
        self.window = window;
    }

    /// True when a frame of `bytes` may be sent now.
    pub fn has_room_for(&self, bytes: usize) -> bool {
        // `self.unacked_bytes == 0` admits one oversized batch, which would otherwise wait without
        // end.
        bytes == 0 || self.unacked_bytes == 0 || self.unacked_bytes + bytes <= self.window
    }

    /// Counts a sent frame and returns its number.
    pub fn record_send(&mut self, bytes: usize) -> u64 {
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        self.unacked_bytes += bytes;
        self.unacked.push_back((sequence, bytes));
        sequence
    }

    /// Counts all frames up to `sequence` as processed. Returns the bytes that this freed.
    ///
    /// # Errors
    /// When no such frame is in flight.
    pub fn acknowledge(&mut self, sequence: u64) -> Result<usize, UnexpectedAck> {
        let position = self
            .unacked
            // An ack must name a frame in flight: anything else shows a peer that counts
            // differently, and the window would drift.
            .binary_search_by_key(&sequence, |frame| frame.0);
        let position = position.map_err(|_| UnexpectedAck(sequence))?;
        let freed = self.unacked.drain(..=position).map(|frame| frame.1).sum();
        self.unacked_bytes -= freed;
        Ok(freed)
    }

    /// True when every sent frame is acknowledged.
    pub fn is_idle(&self) -> bool {
        self.unacked.is_empty()
    }
}
