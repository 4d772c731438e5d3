//! What was sent, and the peer is not known to have.

use std::collections::VecDeque;

use super::{SequenceError, frame_cost};
use crate::migrate::StreamFrame;

/// Its pieces have numbers, from the way's beginning.
#[derive(Debug, Default)]
pub(super) struct OutgoingFrames {
    unacknowledged: VecDeque<StreamFrame>,
    first: u64,
    cost: usize,
}

impl OutgoingFrames {
    /// The number of the first one.
    pub(super) fn first(&self) -> u64 {
        self.first
    }

    /// The number after the last one.
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

    /// The peer has so many, from the beginning. It may be older news than what is known.
    pub(super) fn acknowledge(&mut self, received: u64) -> Result<(), SequenceError> {
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
