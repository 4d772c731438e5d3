//! What a rendezvous has counted, for its metrics.

use std::fmt::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nearpath_daemon::metrics::MetricsRegistry;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::shared_state::SharedState;

/// Why a connection came to nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RejectReason {
    /// No ticket, or one that opens nothing.
    Ticket,
    /// The ticket has ended.
    Expired,
    /// Its address has had too many.
    Address,
    /// No room.
    Full,
    /// It spoke neither TLS nor WebSocket, or took too long.
    Handshake,
    /// The rendezvous is going down.
    Draining,
    /// There is no such path.
    Path,
}

impl RejectReason {
    const ALL: [(Self, &'static str); 7] = [
        (Self::Ticket, "ticket"),
        (Self::Expired, "expired"),
        (Self::Address, "address"),
        (Self::Full, "full"),
        (Self::Handshake, "handshake"),
        (Self::Draining, "draining"),
        (Self::Path, "path"),
    ];
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct RendezvousMetrics {
    rejected: [AtomicU64; RejectReason::ALL.len()],
    /// Questions of observers that were answered, and dropped.
    pub(super) answered_requests: AtomicU64,
    pub(super) dropped_requests: AtomicU64,
    /// Relays that are joined, and that wait for their other end.
    pub(super) open_relays: AtomicU64,
    pub(super) waiting_ends: AtomicU64,
    /// Ends of relays that came; of these, those whose relay was joined already.
    pub(super) relay_ends: AtomicU64,
    pub(super) rejoined_ends: AtomicU64,
    /// Relays that were joined.
    pub(super) joined_relays: AtomicU64,
    pub(super) relayed_bytes: AtomicU64,
    /// Parcels that lie in letter boxes, in bytes; and those for which there was no room.
    pub(super) queued_bytes: AtomicU64,
    pub(super) dropped_frames: AtomicU64,
    /// Lines closed because they did not read.
    pub(super) slow_connections: AtomicU64,
    /// Times that a line or relay was read more slowly than it was written.
    pub(super) throttled_reads: AtomicU64,
}

impl RendezvousMetrics {
    /// One more.
    pub(super) fn increment(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts one for as long as the value is kept.
    pub(super) fn hold_gauge(self: &Arc<Self>, gauge_of: fn(&Self) -> &AtomicU64) -> GaugeGuard {
        Self::increment(gauge_of(self));
        GaugeGuard {
            metrics: self.clone(),
            gauge_of,
        }
    }

    pub(super) fn count_rejected(&self, reason: RejectReason) {
        let at = RejectReason::ALL
            .iter()
            .position(|(one, _)| *one == reason)
            .unwrap_or_default();
        Self::increment(&self.rejected[at]);
    }

    fn encode(&self, to: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let help = "Connections that came to nothing, by reason";
        let mut metric = to.encode_descriptor(
            "nearpath_rendezvous_turned_away",
            help,
            None,
            MetricType::Counter,
        )?;
        for ((_, why), count) in RejectReason::ALL.iter().zip(&self.rejected) {
            let count = ConstCounter::new(count.load(Ordering::Relaxed));
            count.encode(metric.encode_family(&[("reason", *why)])?)?;
        }
        for (name, help, count) in [
            (
                "nearpath_rendezvous_observed",
                "Questions about one's own address that were answered",
                &self.answered_requests,
            ),
            (
                "nearpath_rendezvous_observe_dropped",
                "Datagrams and connections of observers that were not",
                &self.dropped_requests,
            ),
            (
                "nearpath_relay_opened",
                "Ends of relays that came",
                &self.relay_ends,
            ),
            (
                "nearpath_relay_rejoined",
                "Of these, those that ended a relay which seemed to go on",
                &self.rejoined_ends,
            ),
            (
                "nearpath_relay_joined",
                "Relays whose both ends came",
                &self.joined_relays,
            ),
            (
                "nearpath_relay_bytes",
                "Bytes that relays and lines passed on",
                &self.relayed_bytes,
            ),
            (
                "nearpath_rendezvous_spilled",
                "Parcels for which a line had no room",
                &self.dropped_frames,
            ),
            (
                "nearpath_rendezvous_slow",
                "Lines closed because they did not read",
                &self.slow_connections,
            ),
            (
                "nearpath_rendezvous_throttled",
                "Messages after which a line or relay had to wait",
                &self.throttled_reads,
            ),
        ] {
            encode_counter(to, name, help, count.load(Ordering::Relaxed))?;
        }
        encode_gauge(
            to,
            "nearpath_relay_open",
            "Relays with both ends",
            self.open_relays.load(Ordering::Relaxed),
        )?;
        encode_gauge(
            to,
            "nearpath_relay_waiting",
            "Ends of relays that wait for the other",
            self.waiting_ends.load(Ordering::Relaxed),
        )
    }
}

/// See [`RendezvousMetrics::hold_gauge`].
#[derive(Debug)]
pub(super) struct GaugeGuard {
    metrics: Arc<RendezvousMetrics>,
    gauge_of: fn(&RendezvousMetrics) -> &AtomicU64,
}

impl Drop for GaugeGuard {
    fn drop(&mut self) {
        (self.gauge_of)(&self.metrics).fetch_sub(1, Ordering::Relaxed);
    }
}

/// Shows what the hall holds and has counted.
#[derive(Debug)]
struct RendezvousCollector(Arc<SharedState>);

impl Collector for RendezvousCollector {
    fn encode(&self, mut to: DescriptorEncoder<'_>) -> Result<(), Error> {
        let (counts, (lines, sessions, waiting)) = self.0.counts_and_sizes();
        for (name, help, value) in [
            (
                "nearpath_rendezvous_lines",
                "Workers that have a line",
                lines,
            ),
            (
                "nearpath_rendezvous_sessions",
                "Sessions that have neither been hung up nor ended",
                sessions,
            ),
            (
                "nearpath_rendezvous_waiting",
                "Calls that wait for their peer",
                waiting,
            ),
        ] {
            encode_gauge(&mut to, name, help, value as u64)?;
        }
        for (name, help, value) in [
            (
                "nearpath_rendezvous_arrived",
                "Lines that came",
                counts.connected,
            ),
            (
                "nearpath_rendezvous_displaced",
                "Lines that a newer one of the same worker took the place of",
                counts.displaced,
            ),
            ("nearpath_rendezvous_called", "Calls", counts.calls),
            (
                "nearpath_rendezvous_granted",
                "Calls that became sessions",
                counts.granted,
            ),
            (
                "nearpath_rendezvous_absent",
                "Calls whose peer did not come in time",
                counts.absent,
            ),
            (
                "nearpath_rendezvous_refused",
                "Calls refused for another reason",
                counts.refused,
            ),
            (
                "nearpath_rendezvous_words",
                "Words about sessions that were passed on",
                counts.messages,
            ),
            (
                "nearpath_rendezvous_parcels",
                "Pieces of ways that lines passed on",
                counts.frames,
            ),
            (
                "nearpath_rendezvous_reports",
                "Reports that were passed on",
                counts.reports,
            ),
            (
                "nearpath_rendezvous_undelivered",
                "Reports for somebody who has no line",
                counts.undelivered,
            ),
        ] {
            encode_counter(&mut to, name, help, value)?;
        }
        self.0.metrics.encode(&mut to)
    }
}

/// Registers all of it.
pub(super) fn register_metrics(shared: &Arc<SharedState>, registry: &MetricsRegistry) {
    registry.with(|registry| {
        registry.register_collector(Box::new(RendezvousCollector(shared.clone())))
    });
}

fn encode_counter(
    to: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    value: u64,
) -> Result<(), Error> {
    ConstCounter::new(value).encode(to.encode_descriptor(name, help, None, MetricType::Counter)?)
}

fn encode_gauge(
    to: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    value: u64,
) -> Result<(), Error> {
    let value = i64::try_from(value).unwrap_or(i64::MAX);
    ConstGauge::new(value).encode(to.encode_descriptor(name, help, None, MetricType::Gauge)?)
}
