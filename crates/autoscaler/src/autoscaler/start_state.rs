//! Replicas that start, and the backlog that grows meanwhile.

use std::time::Instant;

use super::limits::{PANIC_WINDOW, STABLE_WINDOW};

/// State of the last start: it is over once the replicas that were decided on have been ready for long
/// enough to serve its backlog.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum StartState {
    /// A backlog is a reason for more replicas.
    Settled,
    /// A backlog is no reason for more replicas.
    UnderWay(StartWave),
}

/// Starts from the first decision on more replicas until all of them are ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StartWave {
    begun_at: Instant,
    ready_at: Option<Instant>,
}

impl StartState {
    pub(super) fn begin(now: Instant) -> Self {
        Self::UnderWay(StartWave {
            begun_at: now,
            ready_at: None,
        })
    }

    /// Takes from a sample whether all replicas are ready. They settle a panic window later, and
    /// replicas that never become ready hold nothing up for more than a stable window.
    pub(super) fn update(&mut self, now: Instant, is_ready: bool) {
        let Self::UnderWay(wave) = self else { return };
        wave.ready_at = match is_ready {
            true => wave.ready_at.or(Some(now)),
            false => None,
        };
        let is_drained = wave.ready_at.is_some_and(|at| now >= at + PANIC_WINDOW);
        if is_drained || now >= wave.begun_at + STABLE_WINDOW {
            *self = Self::Settled;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn seconds_under_way(ready_from: u64) -> u64 {
        let start = Instant::now();
        let mut state = StartState::begin(start);
        let is_under_way = |second: &u64| {
            state.update(start + Duration::from_secs(*second), *second >= ready_from);
            state != StartState::Settled
        };
        (0..1_000).take_while(is_under_way).count() as u64
    }

    #[test]
    fn starts_settle_a_panic_window_after_the_last_is_ready() {
        assert_eq!(seconds_under_way(10), 10 + PANIC_WINDOW.as_secs());
    }

    #[test]
    fn starts_that_never_succeed_hold_nothing_up() {
        assert_eq!(seconds_under_way(u64::MAX), STABLE_WINDOW.as_secs());
    }
}
