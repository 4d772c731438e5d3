//! Connections that a server has not answered yet, without a clock.
//!
//! A simple server handles one connection at a time, until that one ends. So a connection in use
//! ends earlier while new ones get no answers.

use std::time::{Duration, Instant};

/// Age at which a connection carries no further request, as in the watchdog.
const MAX_CONNECTION_AGE: Duration = Duration::from_secs(1);
/// Time after which new connections without any answer mean that the server accepts none of them.
const ACCEPT_GRACE: Duration = Duration::from_millis(20);
/// Age limit in that case. It has room for many requests, and thirty connections take turns within
/// a second.
const MAX_CONTENDED_AGE: Duration = Duration::from_millis(20);

/// Connections that have never had a response: the server may not have accepted them.
#[derive(Debug, Default)]
pub(super) struct UnansweredConnections {
    count: u32,
    /// Time since which some wait and none was answered.
    since: Option<Instant>,
}

impl UnansweredConnections {
    /// Adds a connection that was opened at `now`.
    pub(super) fn add(&mut self, now: Instant) {
        self.count += 1;
        self.since.get_or_insert(now);
    }

    /// Notes that one of them was answered: the server accepts connections beside others.
    pub(super) fn note_answer(&mut self, now: Instant) {
        self.since = Some(now);
    }

    /// Removes one, which was answered or closed.
    pub(super) fn remove(&mut self) {
        self.count -= 1;
        if self.count == 0 {
            self.since = None;
        }
    }

    /// Returns the age at which other connections end.
    pub(super) fn connection_age_limit(&self, now: Instant) -> Duration {
        match self.since {
            Some(since) if now.saturating_duration_since(since) > ACCEPT_GRACE => MAX_CONTENDED_AGE,
            _ => MAX_CONNECTION_AGE,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_end_early_while_new_ones_get_no_answer() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut unanswered = UnansweredConnections::default();
        let limit_is_short = |unanswered: &UnansweredConnections, ms| {
            unanswered.connection_age_limit(at(ms)) == MAX_CONTENDED_AGE
        };
        assert!(!limit_is_short(&unanswered, 100));
        unanswered.add(at(0));
        unanswered.add(at(30));
        assert!(!limit_is_short(&unanswered, 20));
        assert!(limit_is_short(&unanswered, 40));
        unanswered.note_answer(at(50));
        unanswered.remove();
        assert!(!limit_is_short(&unanswered, 60), "it accepts");
        assert!(limit_is_short(&unanswered, 80), "and no more since");
        unanswered.remove();
        assert!(!limit_is_short(&unanswered, 90));
    }
}
