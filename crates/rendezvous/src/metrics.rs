//! What a rendezvous has counted, for its metrics.

use std::fmt::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nearpath_daemon::metrics::Registry;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::shared_state::Hall;

/// Why a connection came to nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turned {
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

impl Turned {
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
pub(super) struct Ledger {
    turned: [AtomicU64; Turned::ALL.len()],
    /// Questions of observers that were answered, and dropped.
    pub(super) answered: AtomicU64,
    pub(super) dropped: AtomicU64,
    /// Relays that are joined, and that wait for their other end.
    pub(super) joined: AtomicU64,
    pub(super) halves: AtomicU64,
    /// Ends of relays that came; of these, those whose relay was joined already.
    pub(super) opened: AtomicU64,
    pub(super) rejoined: AtomicU64,
    /// Relays that were joined.
    pub(super) relays: AtomicU64,
    pub(super) relayed: AtomicU64,
    /// Parcels that lie in letter boxes, in bytes; and those for which there was no room.
    pub(super) lying: AtomicU64,
    pub(super) spilled: AtomicU64,
    /// Lines closed because they did not read.
    pub(super) slow: AtomicU64,
    /// Times that a line or relay was read more slowly than it was written.
    pub(super) throttled: AtomicU64,
}

impl Ledger {
    /// One more.
    pub(super) fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts one for as long as the value is kept.
    pub(super) fn hold(self: &Arc<Self>, of: fn(&Self) -> &AtomicU64) -> Held {
        Self::count(of(self));
        Held { ledger: self.clone(), of }
    }

    pub(super) fn turn_away(&self, why: Turned) {
        let at = Turned::ALL.iter().position(|(one, _)| *one == why).unwrap_or_default();
        Self::count(&self.turned[at]);
    }

    fn encode(&self, to: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let help = "Connections that came to nothing, by reason";
        let mut metric = to.encode_descriptor("nearpath_rendezvous_turned_away", help, None, MetricType::Counter)?;
        for ((_, why), count) in Turned::ALL.iter().zip(&self.turned) {
            let count = ConstCounter::new(count.load(Ordering::Relaxed));
            count.encode(metric.encode_family(&[("reason", *why)])?)?;
        }
        for (name, help, count) in [
            ("nearpath_rendezvous_observed", "Questions about one's own address that were answered", &self.answered),
            (
                "nearpath_rendezvous_observe_dropped",
                "Datagrams and connections of observers that were not",
                &self.dropped,
            ),
            ("nearpath_relay_opened", "Ends of relays that came", &self.opened),
            ("nearpath_relay_rejoined", "Of these, those that ended a relay which seemed to go on", &self.rejoined),
            ("nearpath_relay_joined", "Relays whose both ends came", &self.relays),
            ("nearpath_relay_bytes", "Bytes that relays and lines passed on", &self.relayed),
            ("nearpath_rendezvous_spilled", "Parcels for which a line had no room", &self.spilled),
            ("nearpath_rendezvous_slow", "Lines closed because they did not read", &self.slow),
            ("nearpath_rendezvous_throttled", "Messages after which a line or relay had to wait", &self.throttled),
        ] {
            counter(to, name, help, count.load(Ordering::Relaxed))?;
        }
        gauge(to, "nearpath_relay_open", "Relays with both ends", self.joined.load(Ordering::Relaxed))?;
        gauge(
            to,
            "nearpath_relay_waiting",
            "Ends of relays that wait for the other",
            self.halves.load(Ordering::Relaxed),
        )
    }
}

/// See [`Ledger::hold`].
#[derive(Debug)]
pub(super) struct Held {
    ledger: Arc<Ledger>,
    of: fn(&Ledger) -> &AtomicU64,
}

impl Drop for Held {
    fn drop(&mut self) {
        (self.of)(&self.ledger).fetch_sub(1, Ordering::Relaxed);
    }
}

/// Shows what the hall holds and has counted.
#[derive(Debug)]
struct Shown(Arc<Hall>);

impl Collector for Shown {
    fn encode(&self, mut to: DescriptorEncoder<'_>) -> Result<(), Error> {
        let (counts, (lines, sessions, waiting)) = self.0.look();
        for (name, help, value) in [
            ("nearpath_rendezvous_lines", "Workers that have a line", lines),
            ("nearpath_rendezvous_sessions", "Sessions that have neither been hung up nor ended", sessions),
            ("nearpath_rendezvous_waiting", "Calls that wait for their peer", waiting),
        ] {
            gauge(&mut to, name, help, value as u64)?;
        }
        for (name, help, value) in [
            ("nearpath_rendezvous_arrived", "Lines that came", counts.arrived),
            (
                "nearpath_rendezvous_displaced",
                "Lines that a newer one of the same worker took the place of",
                counts.displaced,
            ),
            ("nearpath_rendezvous_called", "Calls", counts.called),
            ("nearpath_rendezvous_granted", "Calls that became sessions", counts.granted),
            ("nearpath_rendezvous_absent", "Calls whose peer did not come in time", counts.absent),
            ("nearpath_rendezvous_refused", "Calls refused for another reason", counts.refused),
            ("nearpath_rendezvous_words", "Words about sessions that were passed on", counts.words),
            ("nearpath_rendezvous_parcels", "Pieces of ways that lines passed on", counts.parcels),
            ("nearpath_rendezvous_reports", "Reports that were passed on", counts.reports),
            ("nearpath_rendezvous_undelivered", "Reports for somebody who has no line", counts.undelivered),
        ] {
            counter(&mut to, name, help, value)?;
        }
        self.0.ledger.encode(&mut to)
    }
}

/// Registers all of it.
pub(super) fn register(hall: &Arc<Hall>, registry: &Registry) {
    registry.with(|registry| registry.register_collector(Box::new(Shown(hall.clone()))));
}

fn counter(to: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: u64) -> Result<(), Error> {
    ConstCounter::new(value).encode(to.encode_descriptor(name, help, None, MetricType::Counter)?)
}

fn gauge(to: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: u64) -> Result<(), Error> {
    let value = i64::try_from(value).unwrap_or(i64::MAX);
    ConstGauge::new(value).encode(to.encode_descriptor(name, help, None, MetricType::Gauge)?)
}
