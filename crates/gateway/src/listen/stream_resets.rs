//! Limit of stream resets by clients (CVE-2023-44487, "rapid reset"). Resets are legitimate: a
//! call with a deadline ends with one. A client that does little else is drained, then cut.

use std::cell::Cell;

/// Requests that may be reset beyond the answered ones.
const MAX_RESET_BURST: i32 = 100;
/// Resets forgiven per tick, which is 24 per second.
const RESETS_FORGIVEN_PER_TICK: u32 = 6;

/// Reset budget of one connection. A reset costs one; an answer and time earn some, up to
/// [`MAX_RESET_BURST`].
#[derive(Debug)]
pub(super) struct ResetBudget {
    remaining: Cell<i32>,
    last_tick: Cell<u32>,
}

/// Decision on a connection after a reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ResetVerdict {
    /// The connection goes on.
    Allowed,
    /// The connection takes no new requests (GOAWAY). An honest client opens another one and
    /// loses nothing.
    Drain,
    /// The client continues after GOAWAY, so it is cut.
    Cut,
}

impl ResetBudget {
    /// Creates the budget of a connection that begins at tick `now`.
    pub(super) fn new(now: u32) -> Self {
        Self {
            remaining: Cell::new(MAX_RESET_BURST),
            last_tick: Cell::new(now),
        }
    }

    /// Notes an answered request.
    pub(super) fn note_answered(&self) {
        self.remaining
            .set((self.remaining.get() + 1).min(MAX_RESET_BURST));
    }

    /// Notes a reset at tick `now` and decides.
    pub(super) fn note_abandoned(&self, now: u32) -> ResetVerdict {
        // Bounded by the burst: a longer time earns no more, and the product cannot overflow.
        let ticks = now
            .wrapping_sub(self.last_tick.replace(now))
            .min(MAX_RESET_BURST.unsigned_abs());
        let forgiven = i32::try_from(ticks * RESETS_FORGIVEN_PER_TICK).unwrap_or(MAX_RESET_BURST);
        self.remaining
            .set((self.remaining.get() + forgiven).min(MAX_RESET_BURST) - 1);
        match self.remaining.get() {
            1.. => ResetVerdict::Allowed,
            remaining if remaining > -MAX_RESET_BURST => ResetVerdict::Drain,
            _ => ResetVerdict::Cut,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_only_resets_is_drained_after_one_burst_and_cut_after_two() {
        let budget = ResetBudget::new(7);
        let verdicts: Vec<_> = (0..MAX_RESET_BURST * 2)
            .map(|_| budget.note_abandoned(7))
            .collect();
        assert_eq!(
            verdicts
                .iter()
                .filter(|verdict| **verdict == ResetVerdict::Allowed)
                .count() as i32,
            MAX_RESET_BURST - 1
        );
        assert_eq!(verdicts.last(), Some(&ResetVerdict::Cut));
    }

    #[test]
    fn resetting_every_second_request_is_allowed() {
        let budget = ResetBudget::new(0);
        assert!((0..10_000).all(|_| {
            budget.note_answered();
            budget.note_abandoned(0) == ResetVerdict::Allowed
        }));
    }

    #[test]
    fn occasional_resets_are_always_allowed() {
        let budget = ResetBudget::new(0);
        assert!(
            (0..10_000)
                .all(|n| budget.note_abandoned(n / RESETS_FORGIVEN_PER_TICK)
                    == ResetVerdict::Allowed)
        );
    }
}
