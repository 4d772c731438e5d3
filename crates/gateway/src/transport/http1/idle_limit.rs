//! Age up to which an idle connection is used again, learned from the server. Without a clock.
//!
//! Some servers close idle connections early, or after each response without saying so. A request
//! that meets such a close fails, because it may have been handled.

use std::time::{Duration, Instant};

/// Age at which an idle connection is closed, as in the watchdog. Servers close theirs after some
/// seconds, perhaps just when a request is sent, so this is far below. A sweep adds up to its
/// interval.
const MAX_IDLE_AGE: Duration = Duration::from_millis(500);
/// Time after which a shorter limit is forgotten: the close may have had another cause.
const LEARNED_LIFETIME: Duration = Duration::from_secs(10);

/// Age limit of a server's idle connections.
#[derive(Debug, Default)]
pub(super) struct IdleLimit {
    /// A shorter limit, and the end of its time.
    learned: Option<(Duration, Instant)>,
}

impl IdleLimit {
    /// Returns the limit.
    pub(super) fn limit_at(&self, now: Instant) -> Duration {
        self.learned
            .filter(|(_, until)| now < *until)
            .map_or(MAX_IDLE_AGE, |(limit, _)| limit)
    }

    /// Notes that the server had closed a connection that was idle for so long.
    pub(super) fn note_closed(&mut self, idle_age: Duration, now: Instant) {
        // Half: the close was earlier than it was found.
        let limit = self.limit_at(now).min(idle_age / 2);
        self.learned = Some((limit, now + LEARNED_LIFETIME));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn early_closes_shorten_the_limit_for_a_while() {
        let start = Instant::now();
        let (at, ms) = (
            |seconds| start + Duration::from_secs(seconds),
            Duration::from_millis,
        );
        let mut limit = IdleLimit::default();
        assert_eq!(limit.limit_at(at(0)), MAX_IDLE_AGE);
        limit.note_closed(ms(100), at(0));
        assert_eq!(limit.limit_at(at(1)), ms(50));
        limit.note_closed(ms(400), at(1));
        assert_eq!(limit.limit_at(at(2)), ms(50), "the shorter one stays");
        limit.note_closed(ms(1), at(2));
        assert_eq!(limit.limit_at(at(11)), ms(1) / 2);
        assert_eq!(limit.limit_at(at(12)), MAX_IDLE_AGE);
    }
}
