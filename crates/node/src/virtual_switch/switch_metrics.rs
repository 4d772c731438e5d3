//! Metrics of connections along edges, read from the kernel at each scrape.

use std::fmt::Error;

use nearpath_daemon::metrics::{MetricsRegistry, encode_totals};
use nearpath_kernel::bpf::EdgeTraffic;
use nearpath_types::Reason;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::switch_report::{EdgeConnections, SwitchReport};

/// Reads the counters at each scrape.
#[derive(Debug)]
struct SwitchCollector(SwitchReport);

/// Adds the counters to a registry.
pub(crate) fn register_collector(report: SwitchReport, registry: &MetricsRegistry) {
    registry.with(|registry| registry.register_collector(Box::new(SwitchCollector(report))));
}

impl Collector for SwitchCollector {
    fn encode(&self, mut to: DescriptorEncoder<'_>) -> Result<(), Error> {
        let Some(refusals) = self.0.refusals() else {
            return Ok(());
        };
        let counts = self.0.connection_counts();
        encode_connections(&mut to, &counts)?;
        encode_denials(&mut to, &counts)?;
        let totals = [
            (
                "nearpath_switch_unknown_callers",
                "Connections refused because the process belongs to no admitted instance",
                refusals.unknown_caller,
            ),
            (
                "nearpath_switch_no_memory",
                "Connections refused because the kernel had no memory for the translation",
                refusals.no_memory,
            ),
            (
                "nearpath_switch_cut_connections",
                "TCP connections and UDP sockets cut because their edge was removed, or the instance of a UDP socket ended",
                self.0.cut_flows(),
            ),
        ];
        encode_totals(&mut to, &totals)?;
        let datagrams = self.0.datagrams();
        datagrams.map_or(Ok(()), |report| report.encode(&mut to))
    }
}

type EdgeLabels = [(&'static str, String); 2];

fn labels(counts: &EdgeConnections) -> EdgeLabels {
    [
        ("caller", counts.caller.to_string()),
        ("callee", counts.callee_name()),
    ]
}

fn encode_connections(
    to: &mut DescriptorEncoder<'_>,
    counts: &[EdgeConnections],
) -> Result<(), Error> {
    type Value = fn(&EdgeTraffic) -> u64;
    let counters: [(&str, &str, Value); 5] = [
        (
            "nearpath_edge_connections",
            "TCP connections to functions' virtual addresses and instances",
            |traffic| traffic.connections + traffic.cold,
        ),
        (
            "nearpath_edge_connections_cold",
            "Of these, those that found no ready instance on this node",
            |traffic| traffic.cold,
        ),
        (
            "nearpath_edge_datagram_flows",
            "Instances that sockets sent datagrams to",
            |traffic| traffic.datagram_flows,
        ),
        (
            "nearpath_edge_connection_bytes_sent",
            "Bytes that callers sent on ended TCP connections, but those to the gateway",
            |traffic| traffic.bytes_sent,
        ),
        (
            "nearpath_edge_connection_bytes_received",
            "Bytes that callers received on ended TCP connections, but those from the gateway",
            |traffic| traffic.bytes_received,
        ),
    ];
    let edges = || {
        counts
            .iter()
            .filter_map(|one| Some((labels(one), one.traffic?)))
    };
    for (name, help, value) in counters {
        let mut metric = to.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, traffic) in edges() {
            ConstCounter::new(value(&traffic)).encode(metric.encode_family(&labels)?)?;
        }
    }
    let help = "Sum of the durations of ended TCP connections";
    let mut metric = to.encode_descriptor(
        "nearpath_edge_connection_seconds",
        help,
        None,
        MetricType::Counter,
    )?;
    for (labels, traffic) in edges() {
        let seconds = traffic.duration.as_secs_f64();
        ConstCounter::new(seconds).encode(metric.encode_family(&labels)?)?;
    }
    encode_open(to, edges())
}

fn encode_open(
    to: &mut DescriptorEncoder<'_>,
    edges: impl Iterator<Item = (EdgeLabels, EdgeTraffic)>,
) -> Result<(), Error> {
    let help = "Open TCP connections";
    let mut metric = to.encode_descriptor(
        "nearpath_edge_connections_open",
        help,
        None,
        MetricType::Gauge,
    )?;
    for (labels, traffic) in edges {
        let open = (traffic.connections + traffic.cold).saturating_sub(traffic.ended);
        ConstGauge::new(open as i64).encode(metric.encode_family(&labels)?)?;
    }
    Ok(())
}

fn encode_denials(to: &mut DescriptorEncoder<'_>, counts: &[EdgeConnections]) -> Result<(), Error> {
    let help = "Connections between functions that were denied";
    let mut metric = to.encode_descriptor(
        "nearpath_edge_connections_denied",
        help,
        None,
        MetricType::Counter,
    )?;
    for one in counts.iter().filter(|one| one.denied > 0) {
        let [caller, callee] = labels(one);
        let reason = ("reason", Reason::NotAllowed.name().to_owned());
        let labels = [caller, callee, reason];
        ConstCounter::new(one.denied).encode(metric.encode_family(&labels)?)?;
    }
    Ok(())
}
