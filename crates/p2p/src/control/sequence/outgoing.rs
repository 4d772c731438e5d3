//! What was sent, and the peer is not known to have.

use std::collections::VecDeque;

use super::{Wrong, cost};
use crate::migrate::Piece;

/// Its pieces have numbers, from the way's beginning.
#[derive(Debug, Default)]
pub(super) struct Out {
    kept: VecDeque<Piece>,
    first: u64,
    cost: usize,
}

impl Out {
    /// The number of the first one.
    pub(super) fn first(&self) -> u64 {
        self.first
    }

    /// The number after the last one.
    pub(super) fn end(&self) -> u64 {
        self.first + self.kept.len() as u64
    }

    pub(super) fn cost(&self) -> usize {
        self.cost
    }

    pub(super) fn push(&mut self, piece: Piece) {
        self.cost += cost(&piece);
        self.kept.push_back(piece);
    }

    pub(super) fn get(&self, number: u64) -> Option<&Piece> {
        self.kept.get(usize::try_from(number.checked_sub(self.first)?).ok()?)
    }

    /// The peer has so many, from the beginning. It may be older news than what is known.
    pub(super) fn acknowledge(&mut self, has: u64) -> Result<(), Wrong> {
        if has > self.end() {
            return Err(Wrong::Unsent { has, sent: self.end() });
        }
        while self.first < has
            && let Some(piece) = self.kept.pop_front()
        {
            self.cost -= cost(&piece);
            self.first += 1;
        }
        Ok(())
    }
}
