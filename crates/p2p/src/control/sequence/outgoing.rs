//! Frames sent to the peer and not acknowledged.

use std::collections::VecDeque;

use super::{SequenceError, frame_cost};
use crate::migrate::StreamFrame;

/// Queue of unacknowledged frames, numbered from the stream's beginning.
#[derive(Debug, Default)]
pub(super) struct OutgoingFrames {
    unacknowledged: VecDeque<StreamFrame>,
    first: u64,
    cost: usize,
}

impl OutgoingFrames {
    /// Returns the number of the first frame.
    pub(super) fn first(&self) -> u64 {
        self.first
    }

    /// Returns the number after the last frame.
    pub(super) fn next_number(&self) -> u64 {
        self.first + self.unacknowledged.len() as u64
    }

    pub(super) fn cost(&self) -> usize {
        self.cost
    }

    pub(super) fn push(&mut self, frame: StreamFrame) {
        self.cost += frame_cost(&frame);
        self.unacknowledged.push_back(frame);
    }

    pub(super) fn get(&self, number: u64) -> Option<&StreamFrame> {
        self.unacknowledged
            .get(usize::try_from(number.checked_sub(self.first)?).ok()?)
    }

    /// Removes acknowledged frames. The acknowledgement may be older than a previous one.
    pub(super) fn acknowledge(&mut self, received: u64) -> Result<(), SequenceError> {
        // More than was ever queued: the peer is wrong, or a carrier corrupted the number.
        if received > self.next_number() {
            return Err(SequenceError::Unsent {
                has: received,
                sent: self.next_number(),
            });
        }
        while self.first < received
            && let Some(frame) = self.unacknowledged.pop_front()
        {
            self.cost -= frame_cost(&frame);
            self.first += 1;
        }
        Ok(())
    }
}
