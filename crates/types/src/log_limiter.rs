//! Limits lines of a log to one a minute for each cause. Pure.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

const LINE_INTERVAL: Duration = Duration::from_secs(60);
/// Maximum causes in memory. Beyond it all are cleared.
const MAX_CAUSES: usize = 4_096;

/// Time of the last line of each cause, and the lines suppressed since. A cause names whoever can
/// repeat it, for example an instance: others then still have their lines.
#[derive(Debug)]
pub struct LogLimiter<K>(HashMap<K, (Instant, u64)>);

impl<K> Default for LogLimiter<K> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Hash + Eq> LogLimiter<K> {
    /// Returns how many lines were suppressed since the last one, if a line of this cause is due.
    pub fn take_due(&mut self, cause: K, now: Instant) -> Option<u64> {
        if self.0.len() >= MAX_CAUSES {
            // Clearing repeats some lines, which is cheaper than an order of use.
            self.0.clear();
        }
        match self.0.get_mut(&cause) {
            Some((last, suppressed)) if now.saturating_duration_since(*last) < LINE_INTERVAL => {
                *suppressed += 1;
                None
            }
            Some(entry) => Some(std::mem::replace(entry, (now, 0)).1),
            None => {
                self.0.insert(cause, (now, 0));
                Some(0)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_gets_one_line_a_minute() {
        let (mut limiter, start) = (LogLimiter::default(), Instant::now());
        let mut at = |seconds, to| limiter.take_due(to, start + Duration::from_secs(seconds));
        assert_eq!(at(0, "db:1"), Some(0));
        assert_eq!(
            (at(1, "db:1"), at(59, "db:1"), at(59, "db:2")),
            (None, None, Some(0))
        );
        assert_eq!(
            at(60, "db:1"),
            Some(2),
            "with the number of suppressed lines"
        );
        assert_eq!(at(61, "db:1"), None);
    }
}
