//! Load of a function at one moment.

use nearpath_types::policy::ScaleMetric;

use super::limits::MAX_LOAD_MILLI;

/// Load of a function at one moment, over all nodes. `None` is a value that is not known: a node
/// does not answer, or a counter has restarted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LoadSample {
    /// Requests that arrive, or messages for a function that is scaled by its queue; in thousandths
    /// per second, see [`CounterRate`](super::CounterRate).
    pub arrival_rate_milli: Option<u64>,
    /// Requests and upgraded connections that are open, those that wait included.
    pub in_flight: Option<u64>,
    /// CPU time that the replicas use, in thousandths of a core.
    pub cpu_milli: Option<u64>,
    /// Messages without a result: those that wait and those that a replica handles. Without the
    /// second kind, replicas that keep up would look idle.
    pub queued_messages: Option<u64>,
    /// Replicas that serve requests.
    pub ready: u32,
    /// Replicas that have been started and do not serve yet.
    pub starting: u32,
}

impl LoadSample {
    /// Returns the load of all replicas, in thousandths of the metric's unit.
    pub(super) fn load_milli(&self, metric: ScaleMetric) -> Option<u64> {
        let whole = |count: u64| count.saturating_mul(1_000);
        let load = match metric {
            ScaleMetric::Rps => self.arrival_rate_milli,
            ScaleMetric::Capacity => self.in_flight.map(whole),
            ScaleMetric::Cpu => self.cpu_milli.map(whole),
            ScaleMetric::Queue => self.queued_messages.map(whole),
        };
        load.map(|load| load.min(MAX_LOAD_MILLI))
    }

    pub(super) fn arrival_rate(&self) -> Option<u64> {
        self.arrival_rate_milli.map(|rate| rate.min(MAX_LOAD_MILLI))
    }

    /// Returns whether a request or message has arrived or is open; `None` if it is not known.
    pub(super) fn has_traffic(&self, metric: ScaleMetric) -> Option<bool> {
        let has_messages = match metric {
            ScaleMetric::Queue => self.queued_messages.map(|count| count > 0),
            // Other functions need not have a queue.
            _ => Some(self.queued_messages.is_some_and(|count| count > 0)),
        };
        let facts = [
            self.arrival_rate_milli.map(|rate| rate > 0),
            self.in_flight.map(|count| count > 0),
            has_messages,
        ];
        // One known request is traffic; no traffic takes all facts.
        match facts.contains(&Some(true)) {
            true => Some(true),
            false if facts.contains(&None) => None,
            false => Some(false),
        }
    }
}
