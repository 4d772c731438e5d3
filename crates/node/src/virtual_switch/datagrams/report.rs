//! Counts of datagrams, for metrics and for the autoscaler.

use std::collections::HashMap;
use std::fmt::{self, Error};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nearpath_daemon::metrics::encode_totals;
use nearpath_types::FunctionId;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::flow_context::FlowContext;

/// Reads the counts of a forwarder. Clones read the same one.
#[derive(Clone)]
pub(crate) struct DatagramReport(Arc<FlowContext>);

impl DatagramReport {
    pub(super) fn new(context: Arc<FlowContext>) -> Self {
        Self(context)
    }

    /// Returns the flows that wait or are forwarded, by callee.
    pub(crate) fn flows_by_callee(&self) -> HashMap<FunctionId, u64> {
        self.0.lock_table().count_by_callee()
    }

    /// Writes the metrics.
    ///
    /// # Errors
    /// If the text cannot be written.
    pub(crate) fn encode(&self, to: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let counters = &self.0.counters;
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed); // orders nothing
        let totals = [
            (
                "nearpath_switch_datagrams_held",
                "Datagrams held until the function has a ready instance",
                value(&counters.held),
            ),
            (
                "nearpath_switch_datagrams_delivered",
                "Held datagrams sent to an instance",
                value(&counters.delivered),
            ),
            (
                "nearpath_switch_datagrams_forwarded",
                "Datagrams that the node forwarded without holding them, in both directions",
                value(&counters.forwarded),
            ),
        ];
        encode_totals(to, &totals)?;
        self.encode_dropped(to)?;
        self.encode_flows(to)
    }

    fn encode_dropped(&self, to: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let name = "nearpath_switch_datagrams_dropped";
        let help = "Datagrams to virtual addresses, and answers, that the node dropped";
        let mut metric = to.encode_descriptor(name, help, None, MetricType::Counter)?;
        // Reasons without a datagram, too: a rate needs the zero before the first.
        for (reason, count) in self.0.counters.dropped() {
            let labels = [("reason", reason)];
            ConstCounter::new(count).encode(metric.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn encode_flows(&self, to: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let name = "nearpath_switch_datagram_flows_open";
        let help = "Flows of datagrams that wait for an instance or are forwarded by the node";
        let metric = to.encode_descriptor(name, help, None, MetricType::Gauge)?;
        ConstGauge::new(self.0.lock_table().len() as i64).encode(metric)
    }
}

impl fmt::Debug for DatagramReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DatagramReport").finish_non_exhaustive()
    }
}
