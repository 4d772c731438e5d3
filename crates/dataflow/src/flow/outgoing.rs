//! Which frames of an edge are on their way.

use std::collections::VecDeque;

/// The producing end of one edge: numbers its frames and counts their bytes until they are acknowledged.
///
/// A batch that is larger than the window goes alone, so any batch gets through. Barriers and ends weigh nothing: they never
/// wait for room.
#[derive(Clone, Debug)]
pub struct Outgoing {
    next: u64,
    window: usize,
    bytes: usize,
    /// Number and bytes, oldest first.
    unacked: VecDeque<(u64, usize)>,
}

/// An acknowledgement of what was never sent, or was acknowledged before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the consumer acknowledges frame {0}, which is not on its way")]
pub struct NotSent(pub u64);

impl Outgoing {
    /// Its first frame has that number.
    pub fn new(next: u64, window: usize) -> Self {
        Self { next, window, bytes: 0, unacked: VecDeque::new() }
    }

    /// Of the next frame.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Bytes that nobody has processed yet, as far as is known here.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// What the consumer allows, once it has said so.
    pub fn set_window(&mut self, window: usize) {
        self.window = window;
    }

    /// Whether so many bytes may go now.
    pub fn admits(&self, bytes: usize) -> bool {
        bytes == 0 || self.bytes == 0 || self.bytes + bytes <= self.window
    }

    /// A frame goes. Its number.
    pub fn send(&mut self, bytes: usize) -> u64 {
        let sequence = self.next;
        self.next += 1;
        self.bytes += bytes;
        self.unacked.push_back((sequence, bytes));
        sequence
    }

    /// All up to that number is processed. How many bytes that freed.
    ///
    /// # Errors
    /// When no such frame is on its way.
    pub fn acknowledge(&mut self, sequence: u64) -> Result<usize, NotSent> {
        let position = self.unacked.binary_search_by_key(&sequence, |frame| frame.0);
        let position = position.map_err(|_| NotSent(sequence))?;
        let freed = self.unacked.drain(..=position).map(|frame| frame.1).sum();
        self.bytes -= freed;
        Ok(freed)
    }

    /// Whether all that was sent is processed.
    pub fn is_idle(&self) -> bool {
        self.unacked.is_empty()
    }
}
