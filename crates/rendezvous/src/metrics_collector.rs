//! Collector of a rendezvous' metrics: sizes of the state, and all counters.

use std::fmt::Error;
use std::sync::Arc;

use nearpath_daemon::metrics::MetricsRegistry;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;

use super::metrics::{encode_counter, encode_gauge};
use super::shared_state::SharedState;
use super::state::StateCounts;

/// Collector of the state's sizes and of all counters.
#[derive(Debug)]
struct RendezvousCollector(Arc<SharedState>);

impl Collector for RendezvousCollector {
    fn encode(&self, mut to: DescriptorEncoder<'_>) -> Result<(), Error> {
        let (counts, (connections, sessions, waiting)) = self.0.counts_and_sizes();
        for (name, help, value) in [
            (
                "nearpath_rendezvous_control_connections",
                "Workers with a control connection",
                connections,
            ),
            ("nearpath_rendezvous_sessions", "Open sessions", sessions),
            (
                "nearpath_rendezvous_waiting",
                "Calls that wait for their peer",
                waiting,
            ),
        ] {
            encode_gauge(&mut to, name, help, value as u64)?;
        }
        for (name, help, value) in counters_of(&counts) {
            encode_counter(&mut to, name, help, value)?;
        }
        self.0.metrics.encode(&mut to)
    }
}

/// Returns name, help text and value of each counter of the state.
fn counters_of(counts: &StateCounts) -> [(&'static str, &'static str, u64); 10] {
    [
        (
            "nearpath_rendezvous_connected",
            "Control connections accepted",
            counts.connected,
        ),
        (
            "nearpath_rendezvous_displaced",
            "Control connections displaced by a newer one of the same worker",
            counts.displaced,
        ),
        ("nearpath_rendezvous_calls", "Calls", counts.calls),
        (
            "nearpath_rendezvous_granted",
            "Granted calls",
            counts.granted,
        ),
        (
            "nearpath_rendezvous_absent",
            "Calls whose peer did not connect in time",
            counts.absent,
        ),
        (
            "nearpath_rendezvous_refused",
            "Calls refused for another reason",
            counts.refused,
        ),
        (
            "nearpath_rendezvous_session_messages",
            "Forwarded session messages",
            counts.messages,
        ),
        (
            "nearpath_rendezvous_relayed_frames",
            "Relayed frames of control connections",
            counts.frames,
        ),
        (
            "nearpath_rendezvous_reports",
            "Forwarded reports",
            counts.reports,
        ),
        (
            "nearpath_rendezvous_undelivered",
            "Reports without a present recipient",
            counts.undelivered,
        ),
    ]
}

/// Registers the collector.
pub(super) fn register_metrics(shared: &Arc<SharedState>, registry: &MetricsRegistry) {
    registry.with(|registry| {
        registry.register_collector(Box::new(RendezvousCollector(shared.clone())))
    });
}
