//! Destination of the completion records of one thread.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nearpath_types::NodeName;

use super::access_log::AccessLog;
use super::totals::GatewayTotals;
use crate::function::StatusCounts;

/// Interval of lines about silent responses in the log of the process, for each thread.
const NOTICE_INTERVAL: Duration = Duration::from_secs(1);

/// Number of a calling node on one thread, from 1. A record has no room for a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CallingNode(NonZeroU16);

impl CallingNode {
    fn index(self) -> usize {
        usize::from(self.0.get()) - 1
    }
}

/// Calling nodes with their counters. Each thread keeps them, so that only the first call takes a
/// lock.
#[derive(Default)]
struct CallingNodes {
    nodes: Vec<(NodeName, Arc<StatusCounts>)>,
    numbers: BTreeMap<NodeName, CallingNode>,
}

/// Counters and log for the completed requests of a thread.
pub(crate) struct CompletionRecorder {
    /// Counters that belong to no function.
    pub totals: Arc<GatewayTotals>,
    /// Access log, if enabled.
    pub log: Option<AccessLog>,
    /// Name of this node among others.
    pub node: Option<NodeName>,
    /// Nodes that have called this thread.
    calling_nodes: RefCell<CallingNodes>,
    is_cutting: Cell<bool>,
    /// Time of the last line about a silent response, and the lines suppressed since.
    last_notice: Cell<Option<(Instant, u64)>>,
}

impl CompletionRecorder {
    /// Creates the recorder of a serving thread.
    pub(crate) fn new(
        totals: Arc<GatewayTotals>,
        log: Option<AccessLog>,
        node: Option<NodeName>,
    ) -> Self {
        Self {
            totals,
            log,
            node,
            calling_nodes: RefCell::default(),
            is_cutting: Cell::new(false),
            last_notice: Cell::new(None),
        }
    }

    /// Returns the number of a calling node on this thread; `None`: there are too many.
    pub(super) fn calling_node(&self, node: &NodeName) -> Option<CallingNode> {
        let mut known = self.calling_nodes.borrow_mut();
        if let Some(number) = known.numbers.get(node) {
            return Some(*number);
        }
        let next = u16::try_from(known.nodes.len() + 1).ok();
        let number = CallingNode(next.and_then(NonZeroU16::new)?);
        let counts = self.totals.node_calls.counts_of(node);
        known.nodes.push((node.clone(), counts));
        known.numbers.insert(node.clone(), number);
        Some(number)
    }

    /// Returns the name of a calling node.
    pub(super) fn calling_node_name(&self, number: CallingNode) -> Option<NodeName> {
        let known = self.calling_nodes.borrow();
        known
            .nodes
            .get(number.index())
            .map(|(name, _)| name.clone())
    }

    /// Counts a completed call of a function that came from another node.
    pub(super) fn count_node_call(&self, number: CallingNode, status: u16) {
        let known = self.calling_nodes.borrow();
        if let Some((_, counts)) = known.nodes.get(number.index()) {
            counts.count_status(status);
        }
    }

    /// Notes the end of the drain timeout: requests that end from now on were cut by it.
    pub(crate) fn begin_cutting(&self) {
        self.is_cutting.set(true);
    }

    /// Returns whether the drain timeout has passed.
    pub(super) fn is_cutting(&self) -> bool {
        self.is_cutting.get()
    }

    /// Returns how many lines about silent responses were suppressed, if the next one is due. A
    /// function chooses how often it is silent.
    pub(super) fn take_silence_notice(&self, now: Instant) -> Option<u64> {
        match self.last_notice.get() {
            Some((last, suppressed)) if now.saturating_duration_since(last) < NOTICE_INTERVAL => {
                self.last_notice.set(Some((last, suppressed + 1)));
                None
            }
            last => {
                self.last_notice.set(Some((now, 0)));
                Some(last.map_or(0, |(_, suppressed)| suppressed))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_second_counts_the_suppressed_ones() {
        let recorder = CompletionRecorder::new(Arc::default(), None, None);
        let start = Instant::now();
        let at = |millis| recorder.take_silence_notice(start + Duration::from_millis(millis));
        assert_eq!(
            [at(0), at(1), at(999), at(1_000), at(2_500)],
            [Some(0), None, None, Some(2), Some(0)]
        );
    }
}
