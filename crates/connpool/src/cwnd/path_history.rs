//! One path: what it bore, when that was, and who uses it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use nearpath_kernel::sockets::{InitialWindow, TcpFlowInfo};

use super::{DEFAULT_INITIAL_SEGMENTS, MAX_INITIAL_WINDOW_BYTES};

/// In which what nobody shows again counts half, and after a loss the limit doubles.
const HALVING_INTERVAL: Duration = Duration::from_secs(60);
/// Least that a loss leaves as the limit, in octets: twice what every connection begins with. A loss may be a segment that was late, or of a connection that
/// sent next to nothing.
const MIN_LIMIT_BYTES: u64 = 32 << 10;
/// As long as a connection's first flight counts as under way, while it is in use.
const FIRST_FLIGHT_AGE: Duration = Duration::from_secs(1);

/// See the module above.
#[derive(Debug)]
pub(super) struct PathHistory {
    /// Most octets that were under way at once and arrived, when that was last seen, and what goes with them.
    proven_bytes: u64,
    last_proven: Instant,
    delivery_rate: u64,
    round_trip: Duration,
    /// What a loss left of it, and when that was.
    loss_limit: Option<(u64, Instant)>,
    /// Connections in use, by their numbers: when they began, and with how many octets beyond what all begin with.
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

    /// One more uses it.
    pub(super) fn begin_use(
        &mut self,
        now: Instant,
        number: u64,
        flow: &TcpFlowInfo,
    ) -> Option<InitialWindow> {
        let share = self.capacity_bytes(now) / (self.connections.len() as u64 + 1);
        let window = self.initial_window(share.min(self.unclaimed_bytes(now)), flow);
        self.connections
            .insert(number, (now, window.map_or(0, |window| window.bytes)));
        window
    }

    pub(super) fn end_use(&mut self, number: u64) {
        self.connections.remove(&number);
    }

    /// `began` is how many segments the connection's window had when nothing was sent.
    pub(super) fn record_flow(&mut self, now: Instant, flow: &TcpFlowInfo, began: u32, lost: bool) {
        let (bears, bore) = (self.capacity_bytes(now), proven_by_flow(flow, began));
        if lost {
            tracing::debug!(
                bears,
                lost = flow.lost_segments,
                "a path has lost something"
            );
            self.loss_limit = Some(((bears.max(bore) / 2).max(MIN_LIMIT_BYTES), now));
            self.proven_bytes = 0;
            return;
        }
        let Some(round_trip) = flow.min_rtt.filter(|_| bore >= bears.div_ceil(2)) else {
            return;
        };
        // Half of it is enough to show that it is still so (RFC 7661, section 4.1).
        self.proven_bytes = bore.max(self.decayed_bytes(now));
        (self.last_proven, self.delivery_rate, self.round_trip) = (
            now,
            flow.delivery_rate.max(bytes_per_second(bore, round_trip)),
            round_trip,
        );
    }

    pub(super) fn is_used(&self) -> bool {
        !self.connections.is_empty()
    }

    pub(super) fn last_proven(&self) -> Instant {
        self.last_proven
    }

    /// What it bears now, as far as is known.
    pub(super) fn capacity_bytes(&self, now: Instant) -> u64 {
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
        self.proven_bytes >> whole_intervals(self.last_proven, now).min(63)
    }

    /// What no other first flight fills.
    fn unclaimed_bytes(&self, now: Instant) -> u64 {
        let flying = self
            .connections
            .values()
            .filter(|(began, _)| now.saturating_duration_since(*began) < FIRST_FLIGHT_AGE);
        self.capacity_bytes(now)
            .saturating_sub(flying.map(|(_, octets)| octets).sum())
    }

    /// At twice the pace that fills a round trip, as a kernel does it that is still probing; but not much faster than bytes ever arrived.
    fn initial_window(&self, octets: u64, flow: &TcpFlowInfo) -> Option<InitialWindow> {
        let segments = u32::try_from(octets.checked_div(flow.mss_bytes.into())?).ok()?;
        let octets = u64::from(segments) * u64::from(flow.mss_bytes);
        let round_trip = flow
            .min_rtt
            .map_or(self.round_trip, |shortest| shortest.max(self.round_trip));
        let filling = u128::from(octets) * 2_000_000_000 / round_trip.as_nanos().max(1);
        let pace = filling
            .min(u128::from(self.delivery_rate) * 5 / 4)
            .min(u128::from(u32::MAX - 1)) as u32;
        (segments > DEFAULT_INITIAL_SEGMENTS && pace > 0).then_some(InitialWindow {
            segments,
            bytes: octets,
            pacing_rate: pace,
        })
    }
}

/// What was under way at once and arrived: no more than the window let go, or than there was. Two things show it. What arrives in a round trip; but the last
/// thing that arrives may be an end alone, after a pause, and the kernel then says how fast *that* came. And the window, where it has grown: it does so only
/// while it holds the sender back, which the kernel takes to be so up to twice of what is under way (`tcp_is_cwnd_limited`).
fn proven_by_flow(flow: &TcpFlowInfo, began: u32) -> u64 {
    let product = u128::from(flow.delivery_rate) * flow.min_rtt.unwrap_or_default().as_nanos()
        / 1_000_000_000;
    let product = u64::try_from(product).unwrap_or(u64::MAX);
    let [whole, half] = [flow.cwnd_segments, flow.cwnd_segments / 2]
        .map(|window| u64::from(window) * u64::from(flow.mss_bytes));
    let grown = if flow.cwnd_segments > began { half } else { 0 };
    product.max(grown).min(whole).min(flow.bytes_sent)
}

fn bytes_per_second(octets: u64, time: Duration) -> u64 {
    let octets = u128::from(octets) * 1_000_000_000 / time.as_nanos().max(1);
    u64::try_from(octets).unwrap_or(u64::MAX)
}

fn whole_intervals(from: Instant, to: Instant) -> u32 {
    let whole = to.saturating_duration_since(from).as_secs() / HALVING_INTERVAL.as_secs();
    u32::try_from(whole).unwrap_or(u32::MAX)
}
