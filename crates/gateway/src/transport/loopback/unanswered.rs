//! Connections that a server has not answered yet, without a clock.
//!
//! A simple server handles one connection at a time, until that one ends. So a connection in use
//! ends earlier while others wait.

use std::time::{Duration, Instant};

/// Age at which a connection carries no further request, as in the watchdog.
const MAX_CONNECTION_AGE: Duration = Duration::from_secs(1);
/// The same while another connection waits for its first response, for longer than this.
const MAX_SHARED_AGE: Duration = Duration::from_millis(20);

/// Connections that have never had a response: the server may not have accepted them.
#[derive(Debug, Default)]
pub(super) struct UnansweredConnections {
    count: u32,
    /// Time since which there has always been one.
    since: Option<Instant>,
}

impl UnansweredConnections {
    pub(super) fn add(&mut self, now: Instant) {
        self.count += 1;
        self.since.get_or_insert(now);
    }

    pub(super) fn remove(&mut self) {
        // The pool may be a later one: the drain removes them all.
        self.count = self.count.saturating_sub(1);
        if self.count == 0 {
            self.since = None;
        }
    }

    /// Returns the age at which other connections end.
    pub(super) fn max_age_of_others(&self, now: Instant) -> Duration {
        match self.since {
            Some(since) if now.saturating_duration_since(since) > MAX_SHARED_AGE => MAX_SHARED_AGE,
            _ => MAX_CONNECTION_AGE,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_end_early_while_one_waits() {
        let start = Instant::now();
        let late = start + 2 * MAX_SHARED_AGE;
        let mut unanswered = UnansweredConnections::default();
        assert_eq!(unanswered.max_age_of_others(late), MAX_CONNECTION_AGE);
        unanswered.add(start);
        unanswered.add(late);
        assert_eq!(unanswered.max_age_of_others(start), MAX_CONNECTION_AGE);
        assert_eq!(unanswered.max_age_of_others(late), MAX_SHARED_AGE);
        unanswered.remove();
        assert_eq!(unanswered.max_age_of_others(late), MAX_SHARED_AGE);
        unanswered.remove();
        assert_eq!(unanswered.max_age_of_others(late), MAX_CONNECTION_AGE);
    }
}
