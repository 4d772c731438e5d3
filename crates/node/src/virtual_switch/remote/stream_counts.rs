//! Counts of streams between nodes, for metrics: one row for each declared edge that had any.

use std::collections::BTreeMap;
use std::fmt::Error;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nearpath_daemon::metrics::MetricsRegistry;
use nearpath_types::{FunctionId, RoutingSnapshot};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use tokio::sync::watch;

use crate::connection_totals::ConnectionTotals;

/// Caller and callee.
type Edge = (FunctionId, FunctionId);

/// Direction of a stream, seen from this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::virtual_switch) enum StreamDirection {
    /// The caller runs here.
    Out,
    /// The callee runs here.
    In,
}

impl StreamDirection {
    fn label(self) -> &'static str {
        match self {
            Self::Out => "out",
            Self::In => "in",
        }
    }
}

/// Counts of this node's streams. Clones are the same counts.
#[derive(Debug, Clone, Default)]
pub(crate) struct StreamCounts(Arc<Mutex<BTreeMap<CountKey, EdgeStreams>>>);

type CountKey = (Edge, StreamDirection);

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct EdgeStreams {
    opened: u64,
    failed: u64,
    open: u64,
}

/// Counts one open stream until it is dropped.
#[derive(Debug)]
pub(in crate::virtual_switch) struct OpenStream {
    counts: StreamCounts,
    key: CountKey,
}

impl StreamCounts {
    /// Counts an open stream of a declared edge.
    pub(in crate::virtual_switch) fn open(
        &self,
        edge: Edge,
        direction: StreamDirection,
    ) -> OpenStream {
        let key = (edge, direction);
        let mut all = self.lock();
        let row = all.entry(key.clone()).or_default();
        row.opened += 1;
        row.open += 1;
        OpenStream {
            counts: self.clone(),
            key,
        }
    }

    /// Counts a stream of a declared edge that was not opened.
    pub(in crate::virtual_switch) fn note_failure(&self, edge: Edge, direction: StreamDirection) {
        self.lock().entry((edge, direction)).or_default().failed += 1;
    }

    /// Adds the streams that other nodes have opened to functions here, by callee.
    pub(crate) fn add_incoming(&self, totals: &mut BTreeMap<FunctionId, ConnectionTotals>) {
        for (((_, callee), direction), row) in &*self.lock() {
            if *direction == StreamDirection::In {
                let total = totals.entry(callee.clone()).or_default();
                total.started = total.started.saturating_add(row.opened);
                total.open = total.open.saturating_add(row.open);
            }
        }
    }

    /// Returns the rows of declared edges, and forgets all others without open streams.
    fn current(&self, snapshot: &RoutingSnapshot) -> Vec<(CountKey, EdgeStreams)> {
        let is_declared = |(caller, callee): &Edge| {
            let route = snapshot.functions.get(caller);
            route.is_some_and(|route| route.policy.may_call(callee))
        };
        let mut all = self.lock();
        // So the rows are bounded by the declared edges, as the kernel's are.
        all.retain(|(edge, _), row| row.open > 0 || is_declared(edge));
        all.iter().map(|(key, row)| (key.clone(), *row)).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<CountKey, EdgeStreams>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner) // each change is complete
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        // It exists: rows with open streams are kept.
        if let Some(row) = self.counts.lock().get_mut(&self.key) {
            row.open -= 1;
        }
    }
}

/// Reads the counts at each scrape.
#[derive(Debug)]
struct StreamCollector {
    counts: StreamCounts,
    snapshots: watch::Receiver<Arc<RoutingSnapshot>>,
}

/// Adds the counts to a registry.
pub(crate) fn register_collector(
    counts: StreamCounts,
    snapshots: watch::Receiver<Arc<RoutingSnapshot>>,
    registry: &MetricsRegistry,
) {
    let collector = StreamCollector { counts, snapshots };
    registry.with(|registry| registry.register_collector(Box::new(collector)));
}

impl Collector for StreamCollector {
    fn encode(&self, mut to: DescriptorEncoder<'_>) -> Result<(), Error> {
        let rows = self.counts.current(&self.snapshots.borrow());
        type CountValue = fn(&EdgeStreams) -> u64;
        let counters: [(&str, &str, CountValue); 2] = [
            (
                "nearpath_edge_node_streams",
                "TCP connections of an edge that went to another node (out), or came from one (in)",
                |row| row.opened,
            ),
            (
                "nearpath_edge_node_streams_failed",
                "TCP connections of an edge that no other node took (out), or that this node refused (in)",
                |row| row.failed,
            ),
        ];
        for (name, help, value) in counters {
            let mut metric = to.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (key, row) in &rows {
                ConstCounter::new(value(row)).encode(metric.encode_family(&labels(key))?)?;
            }
        }
        let help = "Open TCP connections of an edge to another node (out), or from one (in)";
        let name = "nearpath_edge_node_streams_open";
        let mut metric = to.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (key, row) in &rows {
            let open = i64::try_from(row.open).unwrap_or(i64::MAX);
            ConstGauge::new(open).encode(metric.encode_family(&labels(key))?)?;
        }
        Ok(())
    }
}

fn labels(((caller, callee), direction): &CountKey) -> [(&'static str, String); 3] {
    [
        ("caller", caller.to_string()),
        ("callee", callee.to_string()),
        ("direction", direction.label().to_owned()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn incoming_streams_are_connections_of_the_callee() {
        let counts = StreamCounts::default();
        let store: FunctionId = "store".parse().unwrap();
        let open = |caller: &str, direction| {
            counts.open((caller.parse().unwrap(), store.clone()), direction)
        };
        let _open = open("cart", StreamDirection::In);
        drop(open("shop", StreamDirection::In));
        drop(open("cart", StreamDirection::Out));
        let own = ConnectionTotals {
            started: 7,
            open: 3,
        };
        let mut totals = BTreeMap::from([(store.clone(), own)]);
        counts.add_incoming(&mut totals);
        let sum = ConnectionTotals {
            started: 9,
            open: 4,
        };
        assert_eq!(totals, BTreeMap::from([(store.clone(), sum)]));
    }

    #[test]
    fn rows_end_with_their_edge_and_their_last_stream() {
        let edge = || -> Edge { ("cart".parse().unwrap(), "store".parse().unwrap()) };
        let (counts, nothing) = (StreamCounts::default(), RoutingSnapshot::default());
        let open = counts.open(edge(), StreamDirection::Out);
        counts.note_failure(edge(), StreamDirection::Out);
        counts.note_failure(edge(), StreamDirection::In);
        let row = EdgeStreams {
            opened: 1,
            failed: 1,
            open: 1,
        };
        let expected = ((edge(), StreamDirection::Out), row);
        assert_eq!(counts.current(&nothing), [expected]);
        drop(open);
        assert!(counts.current(&nothing).is_empty());
    }
}
