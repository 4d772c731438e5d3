//! What time brings about for a relay. Pure: the time is an argument.

use tokio::time::Instant;

/// What to do at a time, if nothing happens before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RelayTimer {
    /// The link is not short any more.
    ShortLink,
    /// The direct way has had its head start.
    HeadStart,
    /// What was said on the line should have been acknowledged.
    AckOverdue,
    /// Tell the peer what has come.
    SendAck,
    /// Open the relay again.
    Dial,
    /// The relay has been away for too long.
    ResumeDeadline,
    /// The peer takes nothing of what is left for it.
    CloseDeadline,
}

const ALL_TIMERS: [RelayTimer; 7] = [
    RelayTimer::ShortLink,
    RelayTimer::HeadStart,
    RelayTimer::AckOverdue,
    RelayTimer::SendAck,
    RelayTimer::Dial,
    RelayTimer::ResumeDeadline,
    RelayTimer::CloseDeadline,
];

/// At most one of each.
#[derive(Debug, Default)]
pub(super) struct RelayTimers([Option<Instant>; ALL_TIMERS.len()]);

impl RelayTimers {
    pub(super) fn set(&mut self, timer: RelayTimer, at: Instant) {
        self.0[timer as usize] = Some(at);
    }

    /// Not later than it was.
    pub(super) fn set_once(&mut self, timer: RelayTimer, at: impl FnOnce() -> Instant) {
        self.0[timer as usize].get_or_insert_with(at);
    }

    pub(super) fn clear(&mut self, timer: RelayTimer) {
        self.0[timer as usize] = None;
    }

    pub(super) fn is_set(&self, timer: RelayTimer) -> bool {
        self.0[timer as usize].is_some()
    }

    /// When the next one is due.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.0.iter().flatten().min().copied()
    }

    /// One that is due; it is no more.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<RelayTimer> {
        let due = ALL_TIMERS
            .into_iter()
            .find(|timer| self.0[*timer as usize].is_some_and(|at| at <= now))?;
        self.clear(due);
        Some(due)
    }
}
