//! Opening of the own NAT, before anything may reach the peer's.
//!
//! A NAT may answer a packet of a stranger with RST, or give the stranger's flow the port that its
//! own machine uses (Linux: `masquerade` without a filter). Either side's packets must therefore
//! arrive after the other side has sent. The first ones have a small hop limit: they open the
//! sender's NATs, and expire before they reach the peer's (decision 86).
//!
//! Over UDP both sides do that. Over TCP the follower does, and the leader dials: each dial has its
//! own sequence number, and a NAT with connection tracking rejects a second one that comes after
//! the peer's SYN.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use crate::punch::candidate::{PairKey, Transport};

use super::pairs::{CandidatePair, PairProgress};
use super::{AgentPhase, DialOpening, PunchAgent};

/// Hop limit that passes one router, and expires at the next.
const NEAR_HOP_LIMIT: u8 = 2;
/// Hop limit that passes two routers. A container's host is often a NAT behind another NAT.
const FAR_HOP_LIMIT: u8 = 3;
/// Time for the peer's first packets, after which those with [`FAR_HOP_LIMIT`] follow: they may
/// reach the NAT of a close peer.
const NEAR_OPENING_PERIOD: Duration = Duration::from_millis(30);
/// Time after which packets may reach the peer. It covers the pacing and jitter of the peer's first
/// ones.
pub const OPENING_PERIOD: Duration = Duration::from_millis(70);
/// Time for the leader's SYN, which has then left, and mostly arrived.
const LEADER_SYN_PERIOD: Duration = Duration::from_millis(100);
/// Minimum time for it after a late start.
const MIN_OPENING_PERIOD: Duration = Duration::from_millis(40);
/// Time for the leader's next SYN after its last one was refused.
const REOPENING_PERIOD: Duration = Duration::from_millis(200);
/// Minimum interval between tries with different hop limits.
const MIN_STEP_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum wait for the answer of an observer, and for the offer of the mapped address.
const OBSERVER_TIMEOUT: Duration = Duration::from_millis(500);

/// Requests to observers, and the shortest round trip to one.
#[derive(Debug, Default)]
pub(super) struct ObserverTimes {
    pending: Vec<(Transport, SocketAddr, Instant)>,
    round_trip: Option<Duration>,
}

impl ObserverTimes {
    pub(super) fn note_request(&mut self, transport: Transport, base: SocketAddr, now: Instant) {
        self.pending.push((transport, base, now));
    }

    pub(super) fn note_answer(&mut self, transport: Transport, base: SocketAddr, now: Instant) {
        let is_it = |one: &(Transport, SocketAddr, Instant)| (one.0, one.1) == (transport, base);
        if let Some(at) = self.pending.iter().position(is_it) {
            let measured = now.saturating_duration_since(self.pending.swap_remove(at).2);
            // Over TCP the connection takes a round trip, and the request another.
            let round_trip = match transport {
                Transport::Udp => measured,
                Transport::Tcp => measured / 2,
            };
            self.round_trip = Some(
                self.round_trip
                    .map_or(round_trip, |known| known.min(round_trip)),
            );
        }
    }

    fn awaits(&self, key: &PairKey) -> bool {
        self.pending
            .iter()
            .any(|(transport, base, _)| (*transport, *base) == (key.transport, key.base))
    }
}

impl PunchAgent {
    /// Returns when a pair is due: by its own time, and not before its NATs can be open.
    pub(super) fn due_at(&self, pair: &CandidatePair) -> Instant {
        if !self.needs_opening(pair) {
            return pair.next_due;
        }
        let peer_opens = self.peer_opens_at(pair);
        let step = |after: Duration| {
            let earliest = pair.last_tried.map(|last| last + MIN_STEP_INTERVAL);
            earliest.map_or(pair.next_due, |at| at.max(peer_opens + after))
        };
        match (pair.key.transport, pair.opening_tries) {
            (Transport::Tcp, _) if self.is_leader() => {
                pair.next_due.max(peer_opens + OPENING_PERIOD)
            }
            (Transport::Tcp, _) | (Transport::Udp, 0) => pair.next_due,
            (Transport::Udp, 1) => step(NEAR_OPENING_PERIOD),
            (Transport::Udp, _) if pair.first_tried.is_none() => step(OPENING_PERIOD),
            (Transport::Udp, _) => pair.next_due,
        }
    }

    /// Returns the hop limit of the next datagram; `None`: it may reach the peer.
    pub(super) fn opening_hop_limit(&self, pair: &CandidatePair) -> Option<u8> {
        let limits = [NEAR_HOP_LIMIT, FAR_HOP_LIMIT];
        limits
            .get(pair.opening_tries as usize)
            .copied()
            .filter(|_| self.needs_opening(pair))
    }

    /// Returns the opening before a dial: the follower's.
    ///
    /// Later dials have one, too: an RST may have closed the NAT again.
    pub(super) fn dial_opening(&self, pair: &CandidatePair, now: Instant) -> Option<DialOpening> {
        if self.is_leader() || !self.needs_opening(pair) || self.tries_left(pair) < 2 {
            return None;
        }
        let until_leader = self.peer_opens_at(pair) + LEADER_SYN_PERIOD;
        let period = match pair.opening_tries {
            0 => until_leader
                .saturating_duration_since(now)
                .max(MIN_OPENING_PERIOD),
            _ => REOPENING_PERIOD,
        };
        // The smaller one first: a SYN that expires at the peer's open NAT, not before it, leaves
        // its sequence number there.
        let hop_limit = [NEAR_HOP_LIMIT, FAR_HOP_LIMIT][pair.opening_tries as usize % 2];
        Some(DialOpening { hop_limit, period })
    }

    /// Returns whether a NAT or firewall of the peer may be reached too early.
    fn needs_opening(&self, pair: &CandidatePair) -> bool {
        pair.progress == PairProgress::Trying
            && matches!(self.phase, AgentPhase::Searching { .. })
            && may_have_nat(pair.key.remote.ip())
    }

    /// Returns when the peer has presumably sent its first packets over a pair: once it knows the
    /// mapped address of this side.
    ///
    /// An offer takes at most a round trip between this side and the rendezvous longer than the
    /// packets that the peer then receives directly.
    fn peer_opens_at(&self, pair: &CandidatePair) -> Instant {
        let latest = pair.created + OBSERVER_TIMEOUT;
        if self.observers.awaits(&pair.key) {
            return latest;
        }
        let of_base = self.locals.iter().filter(|local| {
            local.base == pair.key.base && local.candidate.transport == pair.key.transport
        });
        let offered = of_base.map(|local| local.added).max();
        let known = offered.map(|at| at + self.observers.round_trip.unwrap_or_default());
        known.map_or(pair.created, |at| at.clamp(pair.created, latest))
    }
}

/// Returns whether a NAT or firewall may be in front of an address: private networks have none
/// within.
pub(super) fn may_have_nat(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => !(ip.is_private() || ip.is_loopback() || ip.is_link_local()),
        IpAddr::V6(ip) => !(ip.is_unique_local() || ip.is_loopback() || ip.is_unicast_link_local()),
    }
}
