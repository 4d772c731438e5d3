//! Metrics of connections to functions' own servers whose bytes sockmap moves, read at each scrape.

use std::fmt;
use std::sync::Arc;

use nearpath_daemon::metrics::MetricsRegistry;
use nearpath_kernel::bpf::LoopbackCounters;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;

use crate::machine::InstanceMachine;

/// The machine's counters, read anew each time.
struct LoopbackReport(Arc<dyn InstanceMachine>);

/// Adds the machine's counters to a registry.
pub(crate) fn register(machine: Arc<dyn InstanceMachine>, registry: &MetricsRegistry) {
    let report = LoopbackReport(machine);
    registry.with(|registry| registry.register_collector(Box::new(report)));
}

impl fmt::Debug for LoopbackReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LoopbackReport")
    }
}

impl Collector for LoopbackReport {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let LoopbackCounters {
            connections,
            moved,
            passed,
        } = self.0.loopback_counters();
        let all = [
            (
                "nearpath_loopback_connections",
                "Connections to functions' own servers that sockmap knows",
                connections,
            ),
            (
                "nearpath_loopback_moved",
                "Messages on them that sockmap moved past TCP",
                moved,
            ),
            (
                "nearpath_loopback_passed",
                "Messages on them that went over TCP",
                passed,
            ),
        ];
        for (name, help, count) in all {
            let counter = ConstCounter::new(count);
            let kind = counter.metric_type();
            counter.encode(encoder.encode_descriptor(name, help, None, kind)?)?;
        }
        Ok(())
    }
}
