//! Metrics of connections to functions' own servers by sockmap, read at each scrape.

use std::fmt;
use std::sync::Arc;

use nearpath_daemon::metrics::{MetricsRegistry, encode_totals};
use nearpath_kernel::bpf::LoopbackCounters;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;

use crate::machine::InstanceMachine;

/// The machine's counters, read anew each time.
struct LoopbackCollector(Arc<dyn InstanceMachine>);

/// Adds the machine's counters to a registry.
pub(crate) fn register_collector(machine: Arc<dyn InstanceMachine>, registry: &MetricsRegistry) {
    let collector = LoopbackCollector(machine);
    registry.with(|registry| registry.register_collector(Box::new(collector)));
}

impl fmt::Debug for LoopbackCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LoopbackCollector")
    }
}

impl Collector for LoopbackCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let LoopbackCounters {
            connections,
            redirected,
            over_tcp,
        } = self.0.loopback_counters();
        let totals = [
            (
                "nearpath_loopback_connections",
                "Connections to functions' own servers that sockmap redirects",
                connections,
            ),
            (
                "nearpath_loopback_redirected_messages",
                "Messages that sockmap put into the receiver's queue",
                redirected,
            ),
            (
                "nearpath_loopback_tcp_messages",
                "Messages of registered ends that went over TCP",
                over_tcp,
            ),
        ];
        encode_totals(&mut encoder, &totals)
    }
}
