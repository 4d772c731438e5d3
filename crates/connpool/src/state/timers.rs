//! What is to be looked at, and when.

use std::collections::BTreeSet;
use std::time::Instant;

use super::types::{KeyId, Ticket};

/// One thing to look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Due {
    /// A waiter's deadline.
    Waiter(Ticket),
    /// A key's warm connections.
    Key(KeyId),
}

/// Everything that is due, in order. Each thing is in it once at most: its owner remembers when.
#[derive(Debug)]
pub(super) struct Agenda(BTreeSet<(Instant, Due)>);

impl Agenda {
    pub(super) const fn new() -> Self {
        Self(BTreeSet::new())
    }

    /// Due `at`, and no more at the time `before`.
    pub(super) fn put(&mut self, due: Due, before: Option<Instant>, at: Instant) {
        self.take(due, before);
        self.0.insert((at, due));
    }

    /// Not due any more.
    pub(super) fn take(&mut self, due: Due, before: Option<Instant>) {
        if let Some(before) = before {
            self.0.remove(&(before, due));
        }
    }

    /// The next thing that is due by now.
    pub(super) fn pop(&mut self, now: Instant) -> Option<Due> {
        let due = self.0.first().filter(|(at, _)| *at <= now).copied()?;
        self.0.remove(&due);
        Some(due.1)
    }

    /// When the first is due.
    pub(super) fn first(&self) -> Option<Instant> {
        self.0.first().map(|(at, _)| *at)
    }
}
