//! Timers of waiters and keys.

use std::collections::BTreeSet;
use std::time::Instant;

use super::types::{KeyId, WaitTicket};

/// Subject of a timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TimerEntry {
    /// Deadline of a waiter.
    Waiter(WaitTicket),
    /// Review of a key's warm connections.
    Key(KeyId),
}

/// Timers in order. Each subject has at most one; its owner remembers the time.
#[derive(Debug)]
pub(super) struct TimerQueue(BTreeSet<(Instant, TimerEntry)>);

impl TimerQueue {
    pub(super) const fn new() -> Self {
        Self(BTreeSet::new())
    }

    /// Schedules a timer for `at`, and cancels its previous one at `before`.
    pub(super) fn schedule(&mut self, due: TimerEntry, before: Option<Instant>, at: Instant) {
        self.cancel_timer(due, before);
        // The subject is part of the entry, so timers of the same instant do not collide.
        self.0.insert((at, due));
    }

    /// Cancels a timer.
    pub(super) fn cancel_timer(&mut self, due: TimerEntry, before: Option<Instant>) {
        if let Some(before) = before {
            self.0.remove(&(before, due));
        }
    }

    /// Removes and returns the next timer that is due.
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<TimerEntry> {
        let due = self.0.first().filter(|(at, _)| *at <= now).copied()?;
        self.0.remove(&due);
        Some(due.1)
    }

    /// Returns when the first timer is due.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.0.first().map(|(at, _)| *at)
    }
}
