//! History of one path: proven bytes in flight, losses, and current connections.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use nearpath_kernel::sockets::{InitialWindow, TcpFlowInfo};

use super::{DEFAULT_INITIAL_SEGMENTS, MAX_INITIAL_WINDOW_BYTES};

/// Interval without proof after which the capacity is halved. After a loss, the limit doubles as
/// often.
const HALVING_INTERVAL: Duration = Duration::from_secs(60);
/// Minimum limit after a loss, in bytes: about twice the default initial window. The loss may be a
/// late segment, or one of a connection that sent almost nothing.
const MIN_LIMIT_BYTES: u64 = 32 << 10;
/// Age up to which the first flight of a connection counts as in flight.
const FIRST_FLIGHT_AGE: Duration = Duration::from_secs(1);

/// History of one path; see the parent module.
#[derive(Debug)]
pub(super) struct PathHistory {
    /// Most bytes that were in flight at once and arrived, with the time, rate and round trip of
    /// that proof.
    proven_bytes: u64,
    last_proven: Instant,
    delivery_rate: u64,
    round_trip: Duration,
    /// Limit after a loss, and the time of the loss.
    loss_limit: Option<(u64, Instant)>,
    /// Connections in use by number: their start, and the bytes of their initial window above the
    /// default.
    connections: BTreeMap<u64, (Instant, u64)>,
}

impl PathHistory {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            proven_bytes: 0,
            last_proven: now,
            delivery_rate: 0,
            round_trip: Duration::ZERO,
            loss_limit: None,
            connections: BTreeMap::new(),
        }
    }

    /// Registers a connection and returns its initial window.
    pub(super) fn begin_use(
        &mut self,
        now: Instant,
        number: u64,
        flow: &TcpFlowInfo,
    ) -> Option<InitialWindow> {
        // An equal share for every connection, so that all of them together fit into the path.
        let share = self.capacity_bytes(now) / (self.connections.len() as u64 + 1);
        let window = self.initial_window(share.min(self.unclaimed_bytes(now)), flow);
        self.connections
            .insert(number, (now, window.map_or(0, |window| window.bytes)));
        window
    }

    pub(super) fn end_use(&mut self, number: u64) {
        self.connections.remove(&number);
    }

    /// Records a flow. `initial_segments` is the connection's window before it sent anything.
    pub(super) fn record_flow(
        &mut self,
        now: Instant,
        flow: &TcpFlowInfo,
        initial_segments: u32,
        is_loss: bool,
    ) {
        let (capacity, proven) = (
            self.capacity_bytes(now),
            proven_by_flow(flow, initial_segments),
        );
        // A loss voids the proof. Half of the flight becomes the limit, as TCP halves its window
        // (RFC 5681, section 3.1).
        if is_loss {
            tracing::debug!(
                capacity,
                lost_segments = flow.lost_segments,
                "initial window: path had a loss, resetting its proven capacity"
            );
            self.loss_limit = Some(((capacity.max(proven) / 2).max(MIN_LIMIT_BYTES), now));
            self.proven_bytes = 0;
            return;
        }
        let Some(round_trip) = flow.min_rtt.filter(|_| proven >= capacity.div_ceil(2)) else {
            return;
        };
        // Half of the capacity proves that the path still has it (RFC 7661, section 4.1).
        self.proven_bytes = proven.max(self.decayed_bytes(now));
        (self.last_proven, self.delivery_rate, self.round_trip) = (
            now,
            flow.delivery_rate.max(bytes_per_second(proven, round_trip)),
            round_trip,
        );
    }

    pub(super) fn is_used(&self) -> bool {
        !self.connections.is_empty()
    }

    pub(super) fn last_proven(&self) -> Instant {
        self.last_proven
    }

    /// Returns the bytes in flight that the path can take now, as far as known.
    pub(super) fn capacity_bytes(&self, now: Instant) -> u64 {
        // The path may have changed since the loss, so the limit doubles per interval. The shift is
        // bounded against overflow.
        let limit = self
            .loss_limit
            .map_or(MAX_INITIAL_WINDOW_BYTES, |(left, at)| {
                left.saturating_mul(1 << whole_intervals(at, now).min(32))
            });
        self.decayed_bytes(now)
            .min(limit)
            .min(MAX_INITIAL_WINDOW_BYTES)
    }

    fn decayed_bytes(&self, now: Instant) -> u64 {
        // A shift of 64 bits would overflow; after 63 halvings nothing is left.
        self.proven_bytes >> whole_intervals(self.last_proven, now).min(63)
    }

    /// Returns the capacity that no first flight of another connection uses.
    fn unclaimed_bytes(&self, now: Instant) -> u64 {
        // Only the first second counts: later the connection's own flow shows what it uses.
        let flying = self.connections.values().filter(|(started_at, _)| {
            now.saturating_duration_since(*started_at) < FIRST_FLIGHT_AGE
        });
        self.capacity_bytes(now)
            .saturating_sub(flying.map(|(_, bytes)| bytes).sum())
    }

    /// Returns a window of `bytes`, paced at twice its size per round trip, as a probing kernel
    /// does. The pace exceeds the proven delivery rate by a quarter at most.
    fn initial_window(&self, bytes: u64, flow: &TcpFlowInfo) -> Option<InitialWindow> {
        // Whole segments only: the kernel counts its window in segments.
        let segments = u32::try_from(bytes.checked_div(flow.mss_bytes.into())?).ok()?;
        let bytes = u64::from(segments) * u64::from(flow.mss_bytes);
        // The longer round trip gives the slower, safer pace.
        let round_trip = flow
            .min_rtt
            .map_or(self.round_trip, |shortest| shortest.max(self.round_trip));
        let filling = u128::from(bytes) * 2_000_000_000 / round_trip.as_nanos().max(1);
        // `u32::MAX` means no limit to `SO_MAX_PACING_RATE`, so the pace stays below it.
        let pace = filling
            .min(u128::from(self.delivery_rate) * 5 / 4)
            .min(u128::from(u32::MAX - 1)) as u32;
        (segments > DEFAULT_INITIAL_SEGMENTS && pace > 0).then_some(InitialWindow {
            segments,
            bytes,
            pacing_rate: pace,
        })
    }
}

/// Returns the bytes that a flow proves were in flight at once and arrived. Never more than its
/// window or what it sent.
///
/// Two values prove it. Rate times round trip is the first. But the last delivery may be a single
/// segment after a pause, whose rate the kernel then reports. So a window that has grown counts as
/// well, by half. The kernel grows it only while it limits the sender, up to twice what is in
/// flight (`tcp_is_cwnd_limited`).
fn proven_by_flow(flow: &TcpFlowInfo, initial_segments: u32) -> u64 {
    // Bandwidth-delay product: the rate is in bytes per second, the round trip in nanoseconds.
    let product = u128::from(flow.delivery_rate) * flow.min_rtt.unwrap_or_default().as_nanos()
        / 1_000_000_000;
    let product = u64::try_from(product).unwrap_or(u64::MAX);
    let [whole, half] = [flow.cwnd_segments, flow.cwnd_segments / 2]
        .map(|window| u64::from(window) * u64::from(flow.mss_bytes));
    let grown = if flow.cwnd_segments > initial_segments {
        half
    } else {
        0
    };
    product.max(grown).min(whole).min(flow.bytes_sent)
}

fn bytes_per_second(bytes: u64, time: Duration) -> u64 {
    let bytes = u128::from(bytes) * 1_000_000_000 / time.as_nanos().max(1);
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

fn whole_intervals(from: Instant, to: Instant) -> u32 {
    let whole = to.saturating_duration_since(from).as_secs() / HALVING_INTERVAL.as_secs();
    u32::try_from(whole).unwrap_or(u32::MAX)
}
