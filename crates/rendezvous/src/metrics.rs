//! Counters of a rendezvous.

use std::fmt::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

/// Reason for rejecting a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RejectReason {
    /// No ticket, or an invalid one.
    Ticket,
    /// Ticket has expired.
    Expired,
    /// Too many connections from its address.
    Address,
    /// Too many handshakes.
    Full,
    /// No TLS or WebSocket handshake in time.
    Handshake,
    /// Rendezvous is draining.
    Draining,
    /// Unknown path.
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

/// Counters of the process.
#[derive(Debug, Default)]
pub(super) struct RendezvousMetrics {
    rejected: [AtomicU64; RejectReason::ALL.len()],
    /// Answered and dropped binding requests.
    pub(super) answered_requests: AtomicU64,
    pub(super) dropped_requests: AtomicU64,
    /// Joined relays, and relay ends that wait for the other end.
    pub(super) open_relays: AtomicU64,
    pub(super) waiting_ends: AtomicU64,
    /// Relay ends that connected; of these, those whose relay was joined already.
    pub(super) relay_ends: AtomicU64,
    pub(super) rejoined_ends: AtomicU64,
    /// Relays that were joined, and bytes that were relayed.
    pub(super) joined_relays: AtomicU64,
    pub(super) relayed_bytes: AtomicU64,
    /// Bytes of frames in outboxes, and frames that found no capacity.
    pub(super) queued_bytes: AtomicU64,
    pub(super) dropped_frames: AtomicU64,
    /// Connections closed because they did not read.
    pub(super) slow_connections: AtomicU64,
    /// Pauses of a connection or relay above its rate.
    pub(super) throttled_reads: AtomicU64,
}

impl RendezvousMetrics {
    /// Increments a counter.
    pub(super) fn increment(counter: &AtomicU64) {
        // Relaxed: counters order nothing; a scrape needs no consistent snapshot.
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Increments a gauge while the returned guard lives.
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

    /// Encodes all counters and gauges.
    pub(super) fn encode(&self, to: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        self.encode_rejections(to)?;
        self.encode_counters(to)?;
        encode_gauge(
            to,
            "nearpath_relay_open",
            "Joined relays",
            self.open_relays.load(Ordering::Relaxed),
        )?;
        encode_gauge(
            to,
            "nearpath_relay_waiting",
            "Relay ends that wait for the other end",
            self.waiting_ends.load(Ordering::Relaxed),
        )
    }

    fn encode_rejections(&self, to: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let help = "Rejected connections, by reason";
        let mut metric = to.encode_descriptor(
            "nearpath_rendezvous_rejected",
            help,
            None,
            MetricType::Counter,
        )?;
        for ((_, reason), count) in RejectReason::ALL.iter().zip(&self.rejected) {
            let count = ConstCounter::new(count.load(Ordering::Relaxed));
            count.encode(metric.encode_family(&[("reason", *reason)])?)?;
        }
        Ok(())
    }

    fn encode_counters(&self, to: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        for (name, help, count) in [
            (
                "nearpath_rendezvous_binding_responses",
                "Answered binding requests",
                &self.answered_requests,
            ),
            (
                "nearpath_rendezvous_binding_requests_dropped",
                "Dropped binding requests",
                &self.dropped_requests,
            ),
            (
                "nearpath_relay_opened",
                "Relay ends that connected",
                &self.relay_ends,
            ),
            (
                "nearpath_relay_rejoined",
                "Relay ends that replaced an older connection of a joined relay",
                &self.rejoined_ends,
            ),
            (
                "nearpath_relay_joined",
                "Relays that were joined",
                &self.joined_relays,
            ),
            (
                "nearpath_relay_bytes",
                "Bytes forwarded by relays and control connections",
                &self.relayed_bytes,
            ),
            (
                "nearpath_rendezvous_frames_dropped",
                "Relayed frames dropped for lack of capacity",
                &self.dropped_frames,
            ),
            (
                "nearpath_rendezvous_slow",
                "Control connections closed because they did not read",
                &self.slow_connections,
            ),
            (
                "nearpath_rendezvous_throttled",
                "Pauses of connections above their rate",
                &self.throttled_reads,
            ),
        ] {
            encode_counter(to, name, help, count.load(Ordering::Relaxed))?;
        }
        Ok(())
    }
}

/// Guard of a gauge; see [`RendezvousMetrics::hold_gauge`].
#[derive(Debug)]
pub(super) struct GaugeGuard {
    metrics: Arc<RendezvousMetrics>,
    gauge_of: fn(&RendezvousMetrics) -> &AtomicU64,
}

impl Drop for GaugeGuard {
    fn drop(&mut self) {
        // Relaxed, as the increment: `pairing` reads the gauge as an estimate.
        (self.gauge_of)(&self.metrics).fetch_sub(1, Ordering::Relaxed);
    }
}

/// Encodes one counter.
pub(super) fn encode_counter(
    to: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    value: u64,
) -> Result<(), Error> {
    ConstCounter::new(value).encode(to.encode_descriptor(name, help, None, MetricType::Counter)?)
}

/// Encodes one gauge.
pub(super) fn encode_gauge(
    to: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    value: u64,
) -> Result<(), Error> {
    // The library's gauges are signed.
    let value = i64::try_from(value).unwrap_or(i64::MAX);
    ConstGauge::new(value).encode(to.encode_descriptor(name, help, None, MetricType::Gauge)?)
}
