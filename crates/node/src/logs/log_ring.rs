//! The last lines of one function, limited by lines and bytes.

use std::collections::VecDeque;

use nearpath_types::{LogLine, LogQuery};

/// Estimated cost of a line besides its text, in bytes.
const LINE_OVERHEAD_BYTES: usize = 128;

/// Limits of each function's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogBound {
    /// Maximum number of lines.
    pub lines: usize,
    /// Maximum number of bytes, including a fixed cost per line.
    pub bytes: usize,
}

impl Default for LogBound {
    fn default() -> Self {
        Self {
            lines: 2_000,
            bytes: 1 << 20,
        }
    }
}

/// Lines of a function, oldest first.
#[derive(Debug)]
pub struct LogRing {
    bound: LogBound,
    lines: VecDeque<LogLine>,
    bytes: usize,
}

impl LogRing {
    /// Creates an empty ring.
    pub fn new(bound: LogBound) -> Self {
        Self {
            bound,
            lines: VecDeque::new(),
            bytes: 0,
        }
    }

    /// Adds a line, and drops the oldest ones above the limits.
    pub fn push_line(&mut self, line: LogLine) {
        self.bytes += line.text.len() + LINE_OVERHEAD_BYTES;
        self.lines.push_back(line);
        // After the push: a single line above the limit of bytes is dropped as well.
        while self.lines.len() > self.bound.lines || self.bytes > self.bound.bytes {
            let Some(oldest) = self.lines.pop_front() else {
                break;
            };
            self.bytes -= oldest.text.len() + LINE_OVERHEAD_BYTES;
        }
    }

    /// Returns the stored lines that match the query, oldest first.
    pub fn select_lines(&self, query: &LogQuery) -> Vec<LogLine> {
        let newest_first = self
            .lines
            .iter()
            .rev()
            .filter(|line| matches_query(query, line));
        let mut selected: Vec<_> = newest_first
            .take(query.tail.unwrap_or(usize::MAX))
            .cloned()
            .collect();
        selected.reverse();
        selected
    }

    /// Returns the last non-empty line of an instance.
    pub fn last_line_of(&self, instance: &str) -> Option<&str> {
        let mut of_instance = self
            .lines
            .iter()
            .rev()
            .filter(|line| line.instance == instance);
        of_instance
            .find(|line| !line.text.trim().is_empty())
            .map(|line| line.text.as_str())
    }
}

/// Returns whether a line matches the query, apart from `tail`.
pub fn matches_query(query: &LogQuery, line: &LogLine) -> bool {
    query
        .instance
        .as_ref()
        .is_none_or(|instance| *instance == line.instance)
        && query.since.is_none_or(|since| line.timestamp >= since)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, SystemTime};

    fn log_line(second: u64, instance: &str, text: &str) -> LogLine {
        let timestamp = SystemTime::UNIX_EPOCH + Duration::from_secs(second);
        let (name, namespace) = ("echo".to_owned(), "dev".to_owned());
        LogLine {
            name,
            namespace,
            instance: instance.to_owned(),
            timestamp,
            text: text.to_owned(),
        }
    }

    fn query_all() -> LogQuery {
        LogQuery {
            function: "echo.dev".parse().unwrap(),
            instance: None,
            tail: None,
            since: None,
            follow: false,
        }
    }

    fn selected_texts(ring: &LogRing, query: &LogQuery) -> Vec<String> {
        ring.select_lines(query)
            .into_iter()
            .map(|line| line.text)
            .collect()
    }

    #[test]
    fn the_oldest_lines_are_dropped() {
        let mut ring = LogRing::new(LogBound {
            lines: 3,
            bytes: 1_000,
        });
        (0..5).for_each(|n| ring.push_line(log_line(n, "i1", &n.to_string())));
        assert_eq!(selected_texts(&ring, &query_all()), ["2", "3", "4"]);
        ring.push_line(log_line(5, "i1", &"x".repeat(700)));
        assert_eq!(
            ring.select_lines(&query_all()).len(),
            2,
            "700 + 3 × 128 + 2 bytes are too many"
        );
        ring.push_line(log_line(6, "i1", &"x".repeat(2_000)));
        assert_eq!(
            ring.select_lines(&query_all()).len(),
            0,
            "a line larger than the limit is dropped"
        );
        assert_eq!(ring.bytes, 0);
    }

    #[test]
    fn tail_applies_after_the_other_filters() {
        let mut ring = LogRing::new(LogBound::default());
        (0..6).for_each(|n| {
            ring.push_line(log_line(
                n,
                if n % 2 == 0 { "i1" } else { "i2" },
                &n.to_string(),
            ))
        });
        assert_eq!(
            selected_texts(
                &ring,
                &LogQuery {
                    tail: Some(2),
                    instance: Some("i1".into()),
                    ..query_all()
                }
            ),
            ["2", "4"]
        );
        let since = Some(SystemTime::UNIX_EPOCH + Duration::from_secs(4));
        assert_eq!(
            selected_texts(
                &ring,
                &LogQuery {
                    since,
                    ..query_all()
                }
            ),
            ["4", "5"]
        );
        assert_eq!(
            selected_texts(
                &ring,
                &LogQuery {
                    tail: Some(0),
                    ..query_all()
                }
            ),
            [""; 0]
        );
        assert_eq!(ring.last_line_of("i1"), Some("4"));
    }
}
