//! What came of the peer.

use std::collections::VecDeque;

use super::{OVER, cost};
use crate::migrate::Piece;

/// Only the next piece comes in: what comes again, or too early, is not shown to it.
#[derive(Debug, Default)]
pub(super) struct In {
    waiting: VecDeque<Piece>,
    waiting_cost: usize,
    /// How many were given to the reader.
    given: u64,
    /// What those cost of which the peer was not told.
    untold: usize,
    over: bool,
}

impl In {
    /// The number of the next one to come.
    pub(super) fn end(&self) -> u64 {
        self.given + self.waiting.len() as u64
    }

    pub(super) fn come(&mut self, piece: Piece) {
        self.waiting_cost += cost(&piece);
        self.waiting.push_back(piece);
    }

    /// To the reader.
    pub(super) fn give(&mut self) -> Option<Piece> {
        let piece = self.waiting.pop_front()?;
        self.waiting_cost -= cost(&piece);
        self.untold += cost(&piece);
        self.given += 1;
        self.over |= matches!(&piece, Piece::Word(text) if text == OVER);
        Some(piece)
    }

    pub(super) fn cost(&self) -> usize {
        self.waiting_cost
    }

    pub(super) fn untold(&self) -> usize {
        self.untold
    }

    pub(super) fn is_over(&self) -> bool {
        self.over
    }

    /// How many were given: what waits may still be a burden to the peer, so that it does not send more than is read.
    pub(super) fn tell(&mut self) -> u64 {
        self.untold = 0;
        self.given
    }
}
