//! The last lines of one function, within a bound of lines and bytes.

use std::collections::VecDeque;

use nearpath_types::{LogLine, LogQuery};

/// What a line costs besides its text.
const OVERHEAD: usize = 128;

/// How much is kept of each function's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bound {
    /// At most so many lines.
    pub lines: usize,
    /// At most so many bytes, with a fixed cost a line.
    pub bytes: usize,
}

impl Default for Bound {
    fn default() -> Self {
        Self { lines: 2_000, bytes: 1 << 20 }
    }
}

/// The lines, oldest first.
#[derive(Debug)]
pub struct Ring {
    bound: Bound,
    lines: VecDeque<LogLine>,
    bytes: usize,
}

impl Ring {
    /// An empty one.
    pub fn new(bound: Bound) -> Self {
        Self { bound, lines: VecDeque::new(), bytes: 0 }
    }

    /// Adds a line and lets go of the oldest ones that no longer fit.
    pub fn push(&mut self, line: LogLine) {
        self.bytes += line.text.len() + OVERHEAD;
        self.lines.push_back(line);
        while self.lines.len() > self.bound.lines || self.bytes > self.bound.bytes {
            let Some(oldest) = self.lines.pop_front() else { break };
            self.bytes -= oldest.text.len() + OVERHEAD;
        }
    }

    /// The kept lines that the query asks for, oldest first.
    pub fn select(&self, query: &LogQuery) -> Vec<LogLine> {
        let newest_first = self.lines.iter().rev().filter(|line| matches(query, line));
        let mut picked: Vec<_> = newest_first.take(query.tail.unwrap_or(usize::MAX)).cloned().collect();
        picked.reverse();
        picked
    }

    /// The last line of an instance that is not empty.
    pub fn last_of(&self, instance: &str) -> Option<&str> {
        let mut of_instance = self.lines.iter().rev().filter(|line| line.instance == instance);
        of_instance.find(|line| !line.text.trim().is_empty()).map(|line| line.text.as_str())
    }
}

/// Whether a line is asked for, apart from `tail`.
pub fn matches(query: &LogQuery, line: &LogLine) -> bool {
    query.instance.as_ref().is_none_or(|instance| *instance == line.instance)
        && query.since.is_none_or(|since| line.timestamp >= since)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, SystemTime};

    fn line(second: u64, instance: &str, text: &str) -> LogLine {
        let timestamp = SystemTime::UNIX_EPOCH + Duration::from_secs(second);
        let (name, namespace) = ("echo".to_owned(), "dev".to_owned());
        LogLine { name, namespace, instance: instance.to_owned(), timestamp, text: text.to_owned() }
    }

    fn query() -> LogQuery {
        LogQuery { function: "echo.dev".parse().unwrap(), instance: None, tail: None, since: None, follow: false }
    }

    fn texts(ring: &Ring, query: &LogQuery) -> Vec<String> {
        ring.select(query).into_iter().map(|line| line.text).collect()
    }

    #[test]
    fn the_oldest_make_room() {
        let mut ring = Ring::new(Bound { lines: 3, bytes: 1_000 });
        (0..5).for_each(|n| ring.push(line(n, "i1", &n.to_string())));
        assert_eq!(texts(&ring, &query()), ["2", "3", "4"]);
        ring.push(line(5, "i1", &"x".repeat(700)));
        assert_eq!(ring.select(&query()).len(), 2, "700 + 3 × 128 + 2 bytes are too many");
        ring.push(line(6, "i1", &"x".repeat(2_000)));
        assert_eq!(ring.select(&query()).len(), 0, "a line larger than the bound is not kept");
        assert_eq!(ring.bytes, 0);
    }

    #[test]
    fn tail_counts_what_the_other_conditions_leave() {
        let mut ring = Ring::new(Bound::default());
        (0..6).for_each(|n| ring.push(line(n, if n % 2 == 0 { "i1" } else { "i2" }, &n.to_string())));
        assert_eq!(texts(&ring, &LogQuery { tail: Some(2), instance: Some("i1".into()), ..query() }), ["2", "4"]);
        let since = Some(SystemTime::UNIX_EPOCH + Duration::from_secs(4));
        assert_eq!(texts(&ring, &LogQuery { since, ..query() }), ["4", "5"]);
        assert_eq!(texts(&ring, &LogQuery { tail: Some(0), ..query() }), [""; 0]);
        assert_eq!(ring.last_of("i1"), Some("4"));
    }
}
