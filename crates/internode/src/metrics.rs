//! Metrics of other nodes, read from their states at each scrape.

use std::fmt::Error;
use std::sync::Arc;

use nearpath_daemon::metrics::MetricsRegistry;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use tokio::sync::watch;

use crate::peer_states::{PeerAvailability, PeerStates, PeerStatus};

/// Reads a gauge's value; `None`: not known yet.
type GaugeValue = fn(&PeerStatus) -> Option<f64>;

/// Encodes the newest states.
#[derive(Debug)]
struct PeerMetrics(watch::Receiver<Arc<PeerStates>>);

/// Registers the metrics of other nodes.
pub(crate) fn register(registry: &MetricsRegistry, states: watch::Receiver<Arc<PeerStates>>) {
    registry.with(|registry| registry.register_collector(Box::new(PeerMetrics(states))));
}

impl Collector for PeerMetrics {
    fn encode(&self, mut to: DescriptorEncoder<'_>) -> Result<(), Error> {
        let states = self.0.borrow().clone();
        let reconnects = "Subscriptions to another node after the first one";
        let reconnects_of = |status: &PeerStatus| Some(ConstCounter::new(status.reconnects));
        let counter = ("nearpath_peer_reconnects", reconnects, MetricType::Counter);
        encode_each(&mut to, &states, counter, reconnects_of)?;
        let gauges: [(&str, &str, GaugeValue); 3] = [
            (
                "nearpath_peer_up",
                "1 if calls may go to the other node, else 0",
                |status| {
                    Some(f64::from(u8::from(
                        status.availability == PeerAvailability::Up,
                    )))
                },
            ),
            (
                "nearpath_peer_round_trip_seconds",
                "Smallest round-trip time to the other node within a minute",
                |status| status.round_trip.map(|time| time.as_secs_f64()),
            ),
            (
                "nearpath_peer_clock_offset_seconds",
                "Other node's clock minus the own",
                |status| status.clock_offset_micros.map(|micros| micros as f64 / 1e6),
            ),
        ];
        for (name, help, value) in gauges {
            let gauge_of = |status: &PeerStatus| value(status).map(ConstGauge::new);
            encode_each(&mut to, &states, (name, help, MetricType::Gauge), gauge_of)?;
        }
        Ok(())
    }
}

/// Encodes a metric of each node that has it.
fn encode_each<M: EncodeMetric>(
    to: &mut DescriptorEncoder<'_>,
    states: &PeerStates,
    (name, help, kind): (&str, &str, MetricType),
    metric_of: impl Fn(&PeerStatus) -> Option<M>,
) -> Result<(), Error> {
    let mut family = to.encode_descriptor(name, help, None, kind)?;
    for (node, status) in &states.peers {
        if let Some(metric) = metric_of(status) {
            metric.encode(family.encode_family(&[("node", node.as_str())])?)?;
        }
    }
    Ok(())
}
