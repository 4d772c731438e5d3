//! Limits lines in a function's log to one a minute for each destination. Pure.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use nearpath_types::FunctionId;

const NOTICE_INTERVAL: Duration = Duration::from_secs(60);
/// Maximum pairs of function and destination in memory. Beyond it all are cleared.
const MAX_NOTICE_KEYS: usize = 4_096;

/// Time of the last line by function and destination, and the lines suppressed since.
#[derive(Debug, Default)]
pub(super) struct NoticeLimiter(HashMap<(FunctionId, String), (Instant, u64)>);

impl NoticeLimiter {
    /// Returns how many lines were suppressed since the last one, if a line about a destination is
    /// due.
    pub(super) fn take_due(
        &mut self,
        function: &FunctionId,
        to: &str,
        now: Instant,
    ) -> Option<u64> {
        if self.0.len() >= MAX_NOTICE_KEYS {
            // Clearing repeats some lines, which is cheaper than an order of use.
            self.0.clear();
        }
        match self.0.get_mut(&(function.clone(), to.to_owned())) {
            Some((last, suppressed)) if now.saturating_duration_since(*last) < NOTICE_INTERVAL => {
                *suppressed += 1;
                None
            }
            Some(entry) => Some(std::mem::replace(entry, (now, 0)).1),
            None => {
                self.0.insert((function.clone(), to.to_owned()), (now, 0));
                Some(0)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_destination_gets_one_line_a_minute() {
        let (mut notices, start) = (NoticeLimiter::default(), Instant::now());
        let f: FunctionId = "f".parse().unwrap();
        let mut at = |seconds, to| notices.take_due(&f, to, start + Duration::from_secs(seconds));
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
