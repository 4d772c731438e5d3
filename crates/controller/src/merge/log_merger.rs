//! Order of the lines of logs that go on. Pure; time is an argument.
//!
//! Lines of several nodes arrive with different delays. A line waits a little for older ones of
//! other nodes, and never longer.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use nearpath_types::NodeLogLine;

/// Time that a line waits for older ones. Longer than a round trip and a look of the node at its
/// pipes; short enough for people who follow.
const REORDER_WINDOW: Duration = Duration::from_millis(250);
/// Lines that may wait. Beyond, the oldest goes on at once.
const MAX_WAITING_LINES: usize = 4_096;

/// Lines of several sources, each in its own order.
#[derive(Debug)]
pub(crate) struct LogMerger {
    sources: Vec<LogSource>,
}

#[derive(Debug, Default)]
struct LogSource {
    lines: VecDeque<(NodeLogLine, Instant)>,
    state: SourceState,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum SourceState {
    /// First lines may come at once, and may be old.
    #[default]
    Pending,
    Open,
    /// Nothing to wait for.
    Gone,
}

/// Next step of a reader.
#[derive(Debug, PartialEq)]
pub(crate) enum MergeStep {
    /// Next line.
    Line(Box<NodeLogLine>),
    /// A line may go on at this time, unless an older one comes before.
    WaitUntil(Instant),
    /// Nothing goes on before the next event.
    Wait,
}

impl LogMerger {
    /// Creates a merger of sources that have not begun.
    pub(crate) fn new(sources: usize) -> Self {
        Self {
            sources: (0..sources).map(|_| LogSource::default()).collect(),
        }
    }

    /// Notes that a source sends its lines.
    pub(crate) fn note_open(&mut self, source: usize) {
        self.sources[source].state = SourceState::Open;
    }

    /// Notes that no line of a source is to be waited for. Lines that it has sent stay.
    pub(crate) fn note_gone(&mut self, source: usize) {
        self.sources[source].state = SourceState::Gone;
    }

    /// Adds the next line of a source.
    pub(crate) fn push(&mut self, source: usize, line: NodeLogLine, now: Instant) {
        self.sources[source].lines.push_back((line, now));
    }

    /// Returns the next step.
    pub(crate) fn next_step(&mut self, now: Instant) -> MergeStep {
        let Some((source, arrived)) = self.oldest() else {
            return MergeStep::Wait;
        };
        let is_full = self.waiting_lines() > MAX_WAITING_LINES;
        let due = arrived + REORDER_WINDOW;
        if self.is_pending() && !is_full {
            return MergeStep::Wait;
        }
        if !self.may_get_older() || is_full || now >= due {
            let line = self.sources[source].lines.pop_front();
            return line.map_or(MergeStep::Wait, |(line, _)| MergeStep::Line(line.into()));
        }
        MergeStep::WaitUntil(due)
    }

    /// Returns the source of the oldest line, and the arrival of that line.
    fn oldest(&self) -> Option<(usize, Instant)> {
        let heads = self.sources.iter().enumerate().filter_map(|(at, source)| {
            let (line, arrived) = source.lines.front()?;
            Some((line.line.timestamp, at, *arrived))
        });
        let oldest = heads.min_by_key(|(time, at, _)| (*time, *at));
        oldest.map(|(_, at, arrived)| (at, arrived))
    }

    fn is_pending(&self) -> bool {
        let mut sources = self.sources.iter();
        sources.any(|source| source.state == SourceState::Pending)
    }

    /// Returns whether an open source without a line could still send an older one.
    fn may_get_older(&self) -> bool {
        let mut sources = self.sources.iter();
        sources.any(|source| source.state == SourceState::Open && source.lines.is_empty())
    }

    fn waiting_lines(&self) -> usize {
        self.sources.iter().map(|source| source.lines.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_types::LogLine;
    use proptest::prelude::*;
    use std::time::SystemTime;

    fn line(second: u64) -> NodeLogLine {
        NodeLogLine {
            line: LogLine {
                name: "echo".to_owned(),
                namespace: "dev".to_owned(),
                instance: "a/i1".to_owned(),
                timestamp: SystemTime::UNIX_EPOCH + Duration::from_secs(second),
                text: String::new(),
            },
            node: None,
            error: None,
        }
    }

    fn step_second(step: MergeStep) -> Option<u64> {
        match step {
            MergeStep::Line(line) => {
                let since = line.line.timestamp.duration_since(SystemTime::UNIX_EPOCH);
                Some(since.unwrap().as_secs())
            }
            _ => None,
        }
    }

    #[test]
    fn old_lines_of_all_nodes_come_before_new_ones() {
        let (mut merger, now) = (LogMerger::new(2), Instant::now());
        merger.note_open(0);
        merger.push(0, line(5), now);
        assert_eq!(merger.next_step(now + REORDER_WINDOW), MergeStep::Wait);
        merger.note_open(1);
        merger.push(1, line(3), now);
        assert_eq!(step_second(merger.next_step(now)), Some(3));
        assert_eq!(
            merger.next_step(now),
            MergeStep::WaitUntil(now + REORDER_WINDOW)
        );
        merger.push(1, line(4), now);
        assert_eq!(step_second(merger.next_step(now)), Some(4));
        assert_eq!(step_second(merger.next_step(now + REORDER_WINDOW)), Some(5));
        assert_eq!(merger.next_step(now), MergeStep::Wait);
    }

    #[test]
    fn a_node_that_is_gone_is_not_waited_for() {
        let (mut merger, now) = (LogMerger::new(2), Instant::now());
        merger.note_open(0);
        merger.note_gone(1);
        merger.push(1, line(7), now);
        merger.push(0, line(5), now);
        assert_eq!(step_second(merger.next_step(now)), Some(5));
        merger.note_gone(0);
        assert_eq!(step_second(merger.next_step(now)), Some(7), "lines stay");
    }

    #[test]
    fn a_flood_does_not_wait() {
        let (mut merger, now) = (LogMerger::new(2), Instant::now());
        merger.note_open(0);
        (0..=MAX_WAITING_LINES as u64).for_each(|second| merger.push(0, line(second), now));
        assert_eq!(step_second(merger.next_step(now)), Some(0));
        assert_eq!(
            merger.next_step(now),
            MergeStep::Wait,
            "the other has not begun"
        );
    }

    proptest! {
        #[test]
        fn every_line_goes_on_in_the_end(seconds in prop::collection::vec((0usize..3, 0u64..50), 0..40)) {
            let (mut merger, now) = (LogMerger::new(3), Instant::now());
            (0..3).for_each(|source| merger.note_open(source));
            for (source, second) in &seconds {
                merger.push(*source, line(*second), now);
            }
            let later = now + REORDER_WINDOW;
            let count = std::iter::from_fn(|| step_second(merger.next_step(later))).count();
            prop_assert_eq!(count, seconds.len());
        }
    }
}
