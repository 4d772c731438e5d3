//! Rounds between moves and trials.

use super::limits::{FIRST_AWAY_ROUNDS, MAX_AWAY_ROUNDS};

/// Rounds until the next move or trial may begin.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Pause {
    rounds: u32,
    /// Rounds of the last doubled one.
    last: u32,
}

impl Pause {
    /// Counts a round.
    pub(super) fn tick(&mut self) {
        self.rounds = self.rounds.saturating_sub(1);
    }

    pub(super) fn is_over(self) -> bool {
        self.rounds == 0
    }

    pub(super) fn begin(&mut self, rounds: u32) {
        self.rounds = rounds;
    }

    /// Begins one of twice the last length. Doubling bounds the number of moves whatever the load does.
    pub(super) fn begin_doubled(&mut self) {
        self.last = match self.last {
            0 => FIRST_AWAY_ROUNDS,
            last => (2 * last).min(MAX_AWAY_ROUNDS),
        };
        self.rounds = self.last;
    }

    /// Has the next doubled one be the first again.
    pub(super) fn reset_length(&mut self) {
        self.last = 0;
    }
}
