//! Timers of a relay. Pure: the time is an argument.

use tokio::time::Instant;

/// Action at a time, unless something happens before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RelayTimer {
    /// Link is no longer short.
    ShortLink,
    /// Head start of the direct connection is over.
    HeadStart,
    /// Acknowledgement on the control connection is overdue.
    AckOverdue,
    /// Send an acknowledgement.
    SendAck,
    /// Dial the relay again.
    Dial,
    /// Relay has been disconnected for too long.
    ResumeDeadline,
    /// Peer takes none of the remaining frames.
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

/// At most one timer of each kind.
#[derive(Debug, Default)]
pub(super) struct RelayTimers([Option<Instant>; ALL_TIMERS.len()]);

impl RelayTimers {
    pub(super) fn set(&mut self, timer: RelayTimer, at: Instant) {
        self.0[timer as usize] = Some(at);
    }

    /// Sets a timer unless it is set.
    pub(super) fn set_once(&mut self, timer: RelayTimer, at: impl FnOnce() -> Instant) {
        self.0[timer as usize].get_or_insert_with(at);
    }

    pub(super) fn clear(&mut self, timer: RelayTimer) {
        self.0[timer as usize] = None;
    }

    pub(super) fn is_set(&self, timer: RelayTimer) -> bool {
        self.0[timer as usize].is_some()
    }

    /// Returns the next deadline.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.0.iter().flatten().min().copied()
    }

    /// Takes a timer that is due.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<RelayTimer> {
        let due = ALL_TIMERS
            .into_iter()
            .find(|timer| self.0[*timer as usize].is_some_and(|at| at <= now))?;
        self.clear(due);
        Some(due)
    }
}
