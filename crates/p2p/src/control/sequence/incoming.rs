//! What came of the peer.

use std::collections::VecDeque;

use super::{END_FRAME, frame_cost};
use crate::migrate::StreamFrame;

/// Only the next piece comes in: what comes again, or too early, is not shown to it.
#[derive(Debug, Default)]
pub(super) struct IncomingFrames {
    waiting: VecDeque<StreamFrame>,
    waiting_cost: usize,
    /// How many were given to the reader.
    delivered: u64,
    /// What those cost of which the peer was not told.
    unacknowledged_cost: usize,
    ended: bool,
}

impl IncomingFrames {
    /// The number of the next one to come.
    pub(super) fn next_number(&self) -> u64 {
        self.delivered + self.waiting.len() as u64
    }

    pub(super) fn push(&mut self, frame: StreamFrame) {
        self.waiting_cost += frame_cost(&frame);
        self.waiting.push_back(frame);
    }

    /// To the reader.
    pub(super) fn deliver(&mut self) -> Option<StreamFrame> {
        let frame = self.waiting.pop_front()?;
        self.waiting_cost -= frame_cost(&frame);
        self.unacknowledged_cost += frame_cost(&frame);
        self.delivered += 1;
        self.ended |= matches!(&frame, StreamFrame::Text(text) if text == END_FRAME);
        Some(frame)
    }

    pub(super) fn buffered_cost(&self) -> usize {
        self.waiting_cost
    }

    pub(super) fn unacknowledged_cost(&self) -> usize {
        self.unacknowledged_cost
    }

    pub(super) fn is_ended(&self) -> bool {
        self.ended
    }

    /// How many were given: what waits may still be a burden to the peer, so that it does not send more than is read.
    pub(super) fn acknowledge(&mut self) -> u64 {
        self.unacknowledged_cost = 0;
        self.delivered
    }
}
