//! One path: what it bore, when that was, and who uses it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use nearpath_kernel::sockets::{InitialWindow, TcpFlowInfo};

use super::{INITIAL, MOST};

/// In which what nobody shows again counts half, and after a loss the limit doubles.
const MINUTE: Duration = Duration::from_secs(60);
/// Least that a loss leaves as the limit, in octets: twice what every connection begins with. A loss may be a segment that was late, or of a connection that
/// sent next to nothing.
const LEAST: u64 = 32 << 10;
/// As long as a connection's first flight counts as under way, while it is in use.
const FLIGHT: Duration = Duration::from_secs(1);

/// See the module above.
#[derive(Debug)]
pub(super) struct Path {
    /// Most octets that were under way at once and arrived, when that was last seen, and what goes with them.
    borne: u64,
    seen: Instant,
    rate: u64,
    round_trip: Duration,
    /// What a loss left of it, and when that was.
    limit: Option<(u64, Instant)>,
    /// Connections in use, by their numbers: when they began, and with how many octets beyond what all begin with.
    users: BTreeMap<u64, (Instant, u64)>,
}

impl Path {
    pub(super) fn new(now: Instant) -> Self {
        Self { borne: 0, seen: now, rate: 0, round_trip: Duration::ZERO, limit: None, users: BTreeMap::new() }
    }

    /// One more uses it.
    pub(super) fn begin(&mut self, now: Instant, number: u64, flow: &TcpFlowInfo) -> Option<InitialWindow> {
        let share = self.bears(now) / (self.users.len() as u64 + 1);
        let window = self.window(share.min(self.free(now)), flow);
        self.users.insert(number, (now, window.map_or(0, |window| window.bytes)));
        window
    }

    pub(super) fn end(&mut self, number: u64) {
        self.users.remove(&number);
    }

    /// `began` is how many segments the connection's window had when nothing was sent.
    pub(super) fn learn(&mut self, now: Instant, flow: &TcpFlowInfo, began: u32, lost: bool) {
        let (bears, bore) = (self.bears(now), bore(flow, began));
        if lost {
            tracing::debug!(bears, lost = flow.lost_segments, "a path has lost something");
            self.limit = Some(((bears.max(bore) / 2).max(LEAST), now));
            self.borne = 0;
            return;
        }
        let Some(round_trip) = flow.min_rtt.filter(|_| bore >= bears.div_ceil(2)) else { return };
        // Half of it is enough to show that it is still so (RFC 7661, section 4.1).
        self.borne = bore.max(self.faded(now));
        (self.seen, self.rate, self.round_trip) =
            (now, flow.delivery_rate.max(per_second(bore, round_trip)), round_trip);
    }

    pub(super) fn is_used(&self) -> bool {
        !self.users.is_empty()
    }

    pub(super) fn seen(&self) -> Instant {
        self.seen
    }

    /// What it bears now, as far as is known.
    pub(super) fn bears(&self, now: Instant) -> u64 {
        let limit = self.limit.map_or(MOST, |(left, at)| left.saturating_mul(1 << minutes(at, now).min(32)));
        self.faded(now).min(limit).min(MOST)
    }

    fn faded(&self, now: Instant) -> u64 {
        self.borne >> minutes(self.seen, now).min(63)
    }

    /// What no other first flight fills.
    fn free(&self, now: Instant) -> u64 {
        let flying = self.users.values().filter(|(began, _)| now.saturating_duration_since(*began) < FLIGHT);
        self.bears(now).saturating_sub(flying.map(|(_, octets)| octets).sum())
    }

    /// At twice the pace that fills a round trip, as a kernel does it that is still probing; but not much faster than bytes ever arrived.
    fn window(&self, octets: u64, flow: &TcpFlowInfo) -> Option<InitialWindow> {
        let segments = u32::try_from(octets.checked_div(flow.mss_bytes.into())?).ok()?;
        let octets = u64::from(segments) * u64::from(flow.mss_bytes);
        let round_trip = flow.min_rtt.map_or(self.round_trip, |shortest| shortest.max(self.round_trip));
        let filling = u128::from(octets) * 2_000_000_000 / round_trip.as_nanos().max(1);
        let pace = filling.min(u128::from(self.rate) * 5 / 4).min(u128::from(u32::MAX - 1)) as u32;
        (segments > INITIAL && pace > 0).then_some(InitialWindow { segments, bytes: octets, pacing_rate: pace })
    }
}

/// What was under way at once and arrived: no more than the window let go, or than there was. Two things show it. What arrives in a round trip; but the last
/// thing that arrives may be an end alone, after a pause, and the kernel then says how fast *that* came. And the window, where it has grown: it does so only
/// while it holds the sender back, which the kernel takes to be so up to twice of what is under way (`tcp_is_cwnd_limited`).
fn bore(flow: &TcpFlowInfo, began: u32) -> u64 {
    let product = u128::from(flow.delivery_rate) * flow.min_rtt.unwrap_or_default().as_nanos() / 1_000_000_000;
    let product = u64::try_from(product).unwrap_or(u64::MAX);
    let [whole, half] =
        [flow.cwnd_segments, flow.cwnd_segments / 2].map(|window| u64::from(window) * u64::from(flow.mss_bytes));
    let grown = if flow.cwnd_segments > began { half } else { 0 };
    product.max(grown).min(whole).min(flow.bytes_sent)
}

fn per_second(octets: u64, time: Duration) -> u64 {
    let octets = u128::from(octets) * 1_000_000_000 / time.as_nanos().max(1);
    u64::try_from(octets).unwrap_or(u64::MAX)
}

fn minutes(from: Instant, to: Instant) -> u32 {
    let whole = to.saturating_duration_since(from).as_secs() / MINUTE.as_secs();
    u32::try_from(whole).unwrap_or(u32::MAX)
}
