//! What time brings about for a relay. Pure: the time is an argument.

use tokio::time::Instant;

/// What to do at a time, if nothing happens before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Timer {
    /// The link is not short any more.
    Short,
    /// The direct way has had its head start.
    HeadStart,
    /// What was said on the line should have been acknowledged.
    Unheard,
    /// Tell the peer what has come.
    Tell,
    /// Open the relay again.
    Dial,
    /// The relay has been away for too long.
    Away,
    /// The peer takes nothing of what is left for it.
    Closing,
}

const ALL: [Timer; 7] =
    [Timer::Short, Timer::HeadStart, Timer::Unheard, Timer::Tell, Timer::Dial, Timer::Away, Timer::Closing];

/// At most one of each.
#[derive(Debug, Default)]
pub(super) struct Timers([Option<Instant>; ALL.len()]);

impl Timers {
    pub(super) fn set(&mut self, timer: Timer, at: Instant) {
        self.0[timer as usize] = Some(at);
    }

    /// Not later than it was.
    pub(super) fn set_once(&mut self, timer: Timer, at: impl FnOnce() -> Instant) {
        self.0[timer as usize].get_or_insert_with(at);
    }

    pub(super) fn clear(&mut self, timer: Timer) {
        self.0[timer as usize] = None;
    }

    pub(super) fn is_set(&self, timer: Timer) -> bool {
        self.0[timer as usize].is_some()
    }

    /// When the next one is due.
    pub(super) fn next(&self) -> Option<Instant> {
        self.0.iter().flatten().min().copied()
    }

    /// One that is due; it is no more.
    pub(super) fn take(&mut self, now: Instant) -> Option<Timer> {
        let due = ALL.into_iter().find(|timer| self.0[*timer as usize].is_some_and(|at| at <= now))?;
        self.clear(due);
        Some(due)
    }
}
