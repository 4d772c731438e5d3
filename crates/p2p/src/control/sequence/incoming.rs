//! Frames received from the peer.

use std::collections::VecDeque;

use super::{END_FRAME, frame_cost};
use crate::migrate::StreamFrame;

/// Queue of received frames. Only the next frame enters: repeated or early ones are rejected
/// before.
#[derive(Debug, Default)]
pub(super) struct IncomingFrames {
    waiting: VecDeque<StreamFrame>,
    waiting_cost: usize,
    /// Number of frames given to the reader.
    delivered: u64,
    /// Cost of the frames that were read and not acknowledged.
    unacknowledged_cost: usize,
    ended: bool,
}

impl IncomingFrames {
    /// Returns the number of the next frame to receive.
    pub(super) fn next_number(&self) -> u64 {
        self.delivered + self.waiting.len() as u64
    }

    pub(super) fn push(&mut self, frame: StreamFrame) {
        self.waiting_cost += frame_cost(&frame);
        self.waiting.push_back(frame);
    }

    /// Gives the next frame to the reader.
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

    /// Returns the number of read frames, to acknowledge them.
    ///
    /// Queued frames are not acknowledged: they count against the peer's limit until they are read.
    pub(super) fn acknowledge(&mut self) -> u64 {
        self.unacknowledged_cost = 0;
        self.delivered
    }
}
