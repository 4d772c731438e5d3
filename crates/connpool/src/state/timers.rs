//! What is to be looked at, and when.

use std::collections::BTreeSet;
use std::time::Instant;

use super::types::{KeyId, WaitTicket};

/// One thing to look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TimerEntry {
    /// A waiter's deadline.
    Waiter(WaitTicket),
    /// A key's warm connections.
    Key(KeyId),
}

/// Everything that is due, in order. Each thing is in it once at most: its owner remembers when.
#[derive(Debug)]
pub(super) struct TimerQueue(BTreeSet<(Instant, TimerEntry)>);

impl TimerQueue {
    pub(super) const fn new() -> Self {
        Self(BTreeSet::new())
    }

    /// Due `at`, and no more at the time `before`.
    pub(super) fn schedule(&mut self, due: TimerEntry, before: Option<Instant>, at: Instant) {
        self.cancel_timer(due, before);
        self.0.insert((at, due));
    }

    /// Not due any more.
    pub(super) fn cancel_timer(&mut self, due: TimerEntry, before: Option<Instant>) {
        if let Some(before) = before {
            self.0.remove(&(before, due));
        }
    }

    /// The next thing that is due by now.
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<TimerEntry> {
        let due = self.0.first().filter(|(at, _)| *at <= now).copied()?;
        self.0.remove(&due);
        Some(due.1)
    }

    /// When the first is due.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.0.first().map(|(at, _)| *at)
    }
}
