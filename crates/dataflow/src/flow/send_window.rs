//! Which frames of an edge are on their way.

use std::collections::VecDeque;

/// The producing end of one edge: numbers its frames and counts their bytes until they are acknowledged.
///
/// A batch that is larger than the window goes alone, so any batch gets through. Barriers and ends weigh nothing: they never
/// wait for room.
#[derive(Clone, Debug)]
pub struct SendWindow {
    next_sequence: u64,
    window: usize,
    unacked_bytes: usize,
    /// Number and bytes, oldest first.
    unacked: VecDeque<(u64, usize)>,
}

/// An acknowledgement of what was never sent, or was acknowledged before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the consumer acknowledges frame {0}, which is not on its way")]
pub struct UnexpectedAck(pub u64);

impl SendWindow {
    /// Its first frame has that number.
    pub fn new(next_sequence: u64, window: usize) -> Self {
        Self {
            next_sequence,
            window,
            unacked_bytes: 0,
            unacked: VecDeque::new(),
        }
    }

    /// Of the next frame.
    pub fn next_sequence(&self) -> u64 {
        self.next_sequence
    }

    /// Bytes that nobody has processed yet, as far as is known here.
    pub fn unacked_bytes(&self) -> usize {
        self.unacked_bytes
    }

    /// What the consumer allows, once it has said so.
    pub fn set_window(&mut self, window: usize) {
        self.window = window;
    }

    /// Whether so many bytes may go now.
    pub fn has_room_for(&self, bytes: usize) -> bool {
        bytes == 0 || self.unacked_bytes == 0 || self.unacked_bytes + bytes <= self.window
    }

    /// A frame goes. Its number.
    pub fn record_send(&mut self, bytes: usize) -> u64 {
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        self.unacked_bytes += bytes;
        self.unacked.push_back((sequence, bytes));
        sequence
    }

    /// All up to that number is processed. How many bytes that freed.
    ///
    /// # Errors
    /// When no such frame is on its way.
    pub fn acknowledge(&mut self, sequence: u64) -> Result<usize, UnexpectedAck> {
        let position = self
            .unacked
            .binary_search_by_key(&sequence, |frame| frame.0);
        let position = position.map_err(|_| UnexpectedAck(sequence))?;
        let freed = self.unacked.drain(..=position).map(|frame| frame.1).sum();
        self.unacked_bytes -= freed;
        Ok(freed)
    }

    /// Whether all that was sent is processed.
    pub fn is_idle(&self) -> bool {
        self.unacked.is_empty()
    }
}
