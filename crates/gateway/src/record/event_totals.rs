//! Counts of events for functions on other nodes.

use std::fmt::Error;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;

/// Events for functions on other nodes, by outcome.
#[derive(Debug, Default)]
pub(crate) struct EventTotals {
    sent: AtomicU64,
    failed: AtomicU64,
    dropped: AtomicU64,
}

impl EventTotals {
    /// Counts the response for one subscriber: sent, or failed.
    pub(crate) fn count_response(&self, is_success: bool) {
        let outcome = if is_success { &self.sent } else { &self.failed };
        outcome.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts an event that was not sent: it is invalid, or its publisher has too many.
    pub(crate) fn count_dropped(&self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }

    /// Writes the counters as `nearpath_remote_events_total`.
    pub(super) fn encode_metrics(&self, to: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let help = "Events for subscribers on other nodes, once for each subscriber; an invalid one counts once";
        let mut events =
            to.encode_descriptor("nearpath_remote_events", help, None, MetricType::Counter)?;
        let outcomes = [
            ("sent", &self.sent),
            ("failed", &self.failed),
            ("dropped", &self.dropped),
        ];
        for (outcome, count) in outcomes {
            let labels = [("outcome", outcome)];
            let count = ConstCounter::new(count.load(Ordering::Relaxed));
            count.encode(events.encode_family(&labels)?)?;
        }
        Ok(())
    }
}
