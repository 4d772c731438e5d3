//! Two agents, the networks between them, and a virtual clock.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use nearpath_types::SpiffeId;

use crate::punch::agent::{
    AgentAction, AgentEvent, AgentState, PunchAgent, PunchMessage, PunchSettings,
};
use crate::punch::candidate::{CandidateKind, PairKey, Transport};
use crate::punch::probe::OPENING_DATAGRAM;
use crate::punch::session::{PunchGrant, PunchSession};

use super::network::{
    DEFAULT_HOP_LIMIT, PUBLIC_REALM, PacketDelivery, PacketTransit, RouteStep, SimNetwork,
};
use super::tcp::{SegmentKind, StackEvent, TcpPhase, TcpSegment, TcpStack};

pub(super) const AGENT_PORT: u16 = 40_000;

/// Conditions of the network.
#[derive(Debug, Clone, Copy)]
pub(super) struct NetworkConditions {
    pub(super) loss: f64,
    pub(super) duplication: f64,
    /// One-way delay in milliseconds: minimum, and maximum addition.
    pub(super) delay: (u64, u64),
}

impl NetworkConditions {
    pub(super) const LOSSY: Self = Self {
        loss: 0.1,
        duplication: 0.02,
        delay: (5, 20),
    };
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PacketPayload {
    Datagram(Vec<u8>),
    Segment(TcpSegment),
}

impl PacketPayload {
    pub(super) fn transport(&self) -> Transport {
        match self {
            Self::Datagram(_) => Transport::Udp,
            Self::Segment(_) => Transport::Tcp,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SimPacket {
    pub(super) from: SocketAddr,
    pub(super) to: SocketAddr,
    pub(super) payload: PacketPayload,
}

#[derive(Debug)]
pub(super) enum SimEvent {
    Arrive {
        host: usize,
        packet: SimPacket,
    },
    /// Arrival at the end of the public network.
    Transit {
        transit: PacketTransit,
        payload: PacketPayload,
    },
    /// RST for a segment that a router in a network has refused.
    Refusal {
        realm: usize,
        from: SocketAddr,
        to: SocketAddr,
        rst: TcpSegment,
    },
    Signal {
        side: usize,
        message: PunchMessage,
    },
    Wake {
        side: usize,
        at: Duration,
    },
    DialTimeout {
        side: usize,
        key: PairKey,
        dial: u64,
    },
    /// End of an opening: the dial proper follows.
    OpeningEnd {
        side: usize,
        key: PairKey,
    },
    /// Retransmission of a half-open connection's SYN or SYN-ACK.
    Retransmit {
        side: usize,
        key: PairKey,
        number: u64,
        left: u8,
    },
}

pub(super) struct SimSide {
    pub(super) agent: PunchAgent,
    pub(super) host: usize,
    pub(super) ip: IpAddr,
    pub(super) stack: TcpStack,
    /// Openings of dials, with the time for the dial proper.
    pub(super) openings: HashMap<PairKey, Duration>,
    wake_at: Option<Duration>,
    /// Paths that it was told to use, in order; `None`: the relay.
    pub(super) chosen_paths: Vec<Option<PairKey>>,
    pub(super) settled_at: Option<Duration>,
}

/// Network and address of a side.
#[derive(Debug, Clone, Copy)]
pub(super) struct SimPlacement {
    pub(super) realm: usize,
    pub(super) ip: IpAddr,
}

pub(super) struct SimWorld {
    pub(super) network: SimNetwork,
    pub(super) sides: Vec<SimSide>,
    pub(super) conditions: NetworkConditions,
    /// Delay of a message through the rendezvous, in milliseconds.
    pub(super) signal_delay: std::ops::Range<u64>,
    start: Instant,
    pub(super) now: Duration,
    due: BinaryHeap<Reverse<(Duration, u64)>>,
    events: BTreeMap<u64, SimEvent>,
    next_event: u64,
    pub(super) rendezvous: SocketAddr,
    pub(super) random: fastrand::Rng,
    /// Arrival of a stream's last segment: segments do not overtake each other.
    streams: BTreeMap<(usize, PairKey), Duration>,
    /// All sent packets, as they left the host.
    pub(super) sent: Vec<(usize, SimPacket)>,
    /// Packets that arrived at other hosts.
    pub(super) stray_packets: Vec<(usize, SimPacket)>,
}

pub(super) fn side_identity(side: usize) -> SpiffeId {
    SpiffeId::for_gateway("test", ["a", "b"][side])
}

pub(super) fn session_grant(seed: u64) -> PunchGrant {
    PunchGrant {
        id: u128::from(seed + 1).to_le_bytes(),
        secret: [7; 32],
        expires: 1_800_000_000,
    }
}

impl SimWorld {
    /// Creates two agents that share a session.
    pub(super) fn new(
        mut network: SimNetwork,
        placements: [SimPlacement; 2],
        settings: &PunchSettings,
        seed: u64,
    ) -> Self {
        let start = Instant::now();
        let rendezvous = SocketAddr::from(([203, 0, 113, 1], 3478));
        network.add_host(PUBLIC_REALM, rendezvous.ip());
        let sides = (0..2).map(|side| {
            let until = start + Duration::from_secs(60);
            let session = PunchSession::new(
                &session_grant(seed),
                &side_identity(side),
                &side_identity(1 - side),
                until,
            )
            .unwrap();
            let agent = PunchAgent::new(session, settings.clone(), seed * 2 + side as u64, start);
            let host = network.add_host(placements[side].realm, placements[side].ip);
            let (stack, used) = (TcpStack::default(), Vec::new());
            SimSide {
                agent,
                host,
                ip: placements[side].ip,
                stack,
                openings: HashMap::new(),
                wake_at: None,
                chosen_paths: used,
                settled_at: None,
            }
        });
        let sides = sides.collect();
        Self {
            sides,
            network,
            conditions: NetworkConditions::LOSSY,
            signal_delay: 5..40,
            start,
            now: Duration::ZERO,
            due: BinaryHeap::new(),
            events: BTreeMap::new(),
            next_event: 0,
            rendezvous,
            random: fastrand::Rng::with_seed(seed),
            streams: BTreeMap::new(),
            sent: Vec::new(),
            stray_packets: Vec::new(),
        }
    }

    pub(super) fn base(&self, side: usize) -> SocketAddr {
        SocketAddr::new(self.sides[side].ip, AGENT_PORT)
    }

    /// Gathers both sides' candidates with the rendezvous' help, and offers them.
    pub(super) fn gather_candidates(&mut self, transports: &[Transport]) {
        for side in 0..2 {
            let base = self.base(side);
            for &transport in transports {
                self.deliver_event(
                    side,
                    AgentEvent::LocalCandidate {
                        kind: CandidateKind::Host,
                        transport,
                        addr: base,
                        base,
                    },
                );
                let end =
                    self.network
                        .send(self.sides[side].host, transport, base, self.rendezvous);
                if let PacketDelivery::Host { from, .. } = end {
                    self.deliver_event(
                        side,
                        AgentEvent::LocalCandidate {
                            kind: CandidateKind::Reflexive,
                            transport,
                            addr: from,
                            base,
                        },
                    );
                }
            }
            self.deliver_event(side, AgentEvent::Gathered);
        }
    }

    /// Runs until no event is left, or the time has passed.
    pub(super) fn run(&mut self, until: Duration) {
        while self.step(until) {}
    }

    pub(super) fn step(&mut self, until: Duration) -> bool {
        let Some(&Reverse((at, number))) = self.due.peek() else {
            return false;
        };
        if at > until {
            return false;
        }
        self.due.pop();
        self.now = at;
        match self.events.remove(&number).unwrap() {
            SimEvent::Arrive { host, packet } => self.deliver_packet(host, packet),
            SimEvent::Signal { side, message } => {
                self.deliver_event(side, AgentEvent::PeerMessage(message))
            }
            SimEvent::Wake { side, at } if self.sides[side].wake_at == Some(at) => {
                self.deliver_event(side, AgentEvent::Tick)
            }
            SimEvent::Wake { .. } => (),
            SimEvent::Transit { transit, payload } => match self.network.route(transit) {
                RouteStep::Delivery(delivery) => self.finish(delivery, payload),
                RouteStep::Transit(_) => unreachable!("a packet passes one public network"),
            },
            SimEvent::Refusal {
                realm,
                from,
                to,
                rst,
            } => {
                let delivery = self.network.return_rst(realm, from, to);
                self.finish(delivery, PacketPayload::Segment(rst));
            }
            SimEvent::DialTimeout { side, key, dial } => {
                if let Some(last) = self.sides[side]
                    .stack
                    .abandon(&(key.base, key.remote), dial)
                {
                    self.send_segment(side, key, last);
                    self.deliver_event(side, AgentEvent::Disconnected(key));
                }
            }
            SimEvent::OpeningEnd { side, key } => self.end_opening(side, key),
            SimEvent::Retransmit {
                side,
                key,
                number,
                left,
            } => self.retransmit(side, key, number, left),
        }
        true
    }

    pub(super) fn schedule(&mut self, at: Duration, due: SimEvent) {
        self.events.insert(self.next_event, due);
        self.due.push(Reverse((at, self.next_event)));
        self.next_event += 1;
    }

    pub(super) fn deliver_event(&mut self, side: usize, event: AgentEvent) {
        let now = self.start + self.now;
        let actions = self.sides[side].agent.handle_event(event, now);
        actions
            .into_iter()
            .for_each(|action| self.perform(side, action));
        if self.sides[side].settled_at.is_none()
            && self.sides[side].agent.state() != AgentState::Searching
        {
            self.sides[side].settled_at = Some(self.now);
        }
    }

    fn perform(&mut self, side: usize, action: AgentAction) {
        match action {
            AgentAction::Signal(message) => {
                let delay = Duration::from_millis(self.random.u64(self.signal_delay.clone()));
                self.schedule(
                    self.now + delay,
                    SimEvent::Signal {
                        side: 1 - side,
                        message,
                    },
                );
            }
            AgentAction::Send { key, bytes } => {
                self.send_packet(side, key, PacketPayload::Datagram(bytes.to_vec()))
            }
            AgentAction::SendOpening { key, hop_limit } => self.send_packet_within(
                Some(hop_limit),
                side,
                key,
                PacketPayload::Datagram(OPENING_DATAGRAM.to_vec()),
            ),
            AgentAction::Write { key, bytes } => {
                let data = self.sides[side]
                    .stack
                    .segment_of(&(key.base, key.remote), SegmentKind::Data(bytes.to_vec()));
                self.send_segment(side, key, data);
            }
            AgentAction::Listen { .. } => self.sides[side].stack.listening = true,
            AgentAction::Dial {
                key,
                timeout,
                opening,
            } => self.dial(side, key, timeout, opening),
            AgentAction::Close(key) => {
                self.sides[side].openings.remove(&key);
                let last = self.sides[side].stack.close(&(key.base, key.remote));
                self.send_segment(side, key, last);
            }
            AgentAction::UseRelay => self.sides[side].chosen_paths.push(None),
            AgentAction::UsePair(key) => self.sides[side].chosen_paths.push(Some(key)),
            AgentAction::Wake { at } => {
                let at = at - self.start;
                self.sides[side].wake_at = Some(at);
                self.schedule(at.max(self.now), SimEvent::Wake { side, at });
            }
            AgentAction::GiveUp(_) => (),
        }
    }

    pub(super) fn send_segment(&mut self, side: usize, key: PairKey, segment: Option<TcpSegment>) {
        if let Some(segment) = segment {
            self.send_packet(side, key, PacketPayload::Segment(segment));
        }
    }

    pub(super) fn send_packet(&mut self, side: usize, key: PairKey, payload: PacketPayload) {
        self.send_packet_within(None, side, key, payload);
    }

    pub(super) fn send_packet_within(
        &mut self,
        hop_limit: Option<u8>,
        side: usize,
        key: PairKey,
        payload: PacketPayload,
    ) {
        let packet = SimPacket {
            from: key.base,
            to: key.remote,
            payload,
        };
        let hop_limit = hop_limit.unwrap_or(DEFAULT_HOP_LIMIT);
        self.emit_within(hop_limit, self.sides[side].host, packet, Some((side, key)));
    }

    /// Sends a packet from a host, with any source address.
    pub(super) fn emit(&mut self, host: usize, packet: SimPacket, of: Option<(usize, PairKey)>) {
        self.emit_within(DEFAULT_HOP_LIMIT, host, packet, of);
    }

    fn emit_within(
        &mut self,
        hop_limit: u8,
        host: usize,
        packet: SimPacket,
        of: Option<(usize, PairKey)>,
    ) {
        self.sent.push((host, packet.clone()));
        let times = if self.random.f64() < self.conditions.duplication {
            2
        } else {
            1
        };
        for _ in 0..times {
            let end = self.network.send_within(
                hop_limit,
                host,
                packet.payload.transport(),
                packet.from,
                packet.to,
            );
            let in_order = matches!(
                packet.payload,
                PacketPayload::Segment(TcpSegment {
                    kind: SegmentKind::Data(_),
                    ..
                })
            );
            let lost = self.random.f64() < self.conditions.loss;
            match end {
                _ if lost && !in_order => (),
                RouteStep::Delivery(PacketDelivery::Host { host, from, to }) => {
                    let at = self.arrival_time(lost, of.filter(|_| in_order));
                    let packet = SimPacket {
                        from,
                        to,
                        payload: packet.payload.clone(),
                    };
                    self.schedule(at, SimEvent::Arrive { host, packet });
                }
                RouteStep::Delivery(delivery) => self.finish(delivery, packet.payload.clone()),
                RouteStep::Transit(transit) => {
                    let at = self.arrival_time(lost, of.filter(|_| in_order));
                    let payload = packet.payload.clone();
                    self.schedule(at, SimEvent::Transit { transit, payload });
                }
            }
            if in_order {
                return; // a stream delivers its bytes once
            }
        }
    }

    /// Returns the arrival time; a lost segment of a stream arrives later, behind its predecessors.
    fn arrival_time(&mut self, lost: bool, stream: Option<(usize, PairKey)>) -> Duration {
        let (min_delay, jitter) = self.conditions.delay;
        let delay = Duration::from_millis(min_delay + self.random.u64(0..=jitter));
        let at = self.now
            + delay
            + if lost {
                Duration::from_millis(200)
            } else {
                Duration::ZERO
            };
        let Some(stream) = stream else { return at };
        let last = self.streams.entry(stream).or_default();
        *last = at.max(*last + Duration::from_nanos(1));
        *last
    }

    /// Ends a packet's way.
    fn finish(&mut self, delivery: PacketDelivery, payload: PacketPayload) {
        match (delivery, payload) {
            (PacketDelivery::Host { host, from, to }, payload) => {
                self.deliver_packet(host, SimPacket { from, to, payload })
            }
            (PacketDelivery::Refused { realm, from, to }, PacketPayload::Segment(refused)) => {
                let at = self.arrival_time(false, None);
                let rst = refused.to_rst();
                let (from, to) = (to, from);
                self.schedule(
                    at,
                    SimEvent::Refusal {
                        realm,
                        from,
                        to,
                        rst,
                    },
                );
            }
            (PacketDelivery::Refused { .. } | PacketDelivery::Lost, _) => (),
        }
    }

    fn deliver_packet(&mut self, host: usize, packet: SimPacket) {
        let Some(side) = self.sides.iter().position(|side| side.host == host) else {
            return self.stray_packets.push((host, packet));
        };
        if packet.to != self.base(side) {
            return;
        }
        match packet.payload {
            PacketPayload::Datagram(bytes) => {
                self.deliver_event(
                    side,
                    AgentEvent::Datagram {
                        base: packet.to,
                        from: packet.from,
                        bytes,
                    },
                );
            }
            PacketPayload::Segment(segment) => {
                self.deliver_segment(side, packet.to, packet.from, segment)
            }
        }
    }

    fn deliver_segment(
        &mut self,
        side: usize,
        base: SocketAddr,
        remote: SocketAddr,
        segment: TcpSegment,
    ) {
        let key = PairKey {
            transport: Transport::Tcp,
            base,
            remote,
        };
        let (answer, stack_events) = self.sides[side]
            .stack
            .handle_segment((base, remote), segment);
        if let Some(TcpSegment {
            kind: SegmentKind::SynAck,
            number,
            ..
        }) = answer
        {
            self.schedule(
                self.now + Duration::from_secs(1),
                SimEvent::Retransmit {
                    side,
                    key,
                    number,
                    left: 3,
                },
            );
        }
        self.send_segment(side, key, answer);
        for stack_event in stack_events {
            if stack_event == StackEvent::Ended && self.sides[side].openings.contains_key(&key) {
                self.end_opening(side, key);
                continue;
            }
            if stack_event == StackEvent::Connected {
                self.sides[side].openings.remove(&key);
            }
            let taken = matches!(stack_event, StackEvent::Read(_))
                && self.sides[side].chosen_paths.last() == Some(&Some(key));
            assert!(
                !taken,
                "a probe comes on a connection of which the rest belongs to TLS"
            );
            let event = match stack_event {
                StackEvent::Connected => AgentEvent::Connected(key),
                StackEvent::Read(bytes) => AgentEvent::Read { key, bytes },
                StackEvent::Ended => AgentEvent::Disconnected(key),
            };
            self.deliver_event(side, event);
        }
    }

    /// Returns whether both sides use one pair that carries packets both ways; panics if they
    /// disagree.
    pub(super) fn is_direct(&mut self) -> bool {
        let keys = match (self.sides[0].agent.state(), self.sides[1].agent.state()) {
            (AgentState::Direct(a), AgentState::Direct(b)) => [a, b],
            (AgentState::Relayed, AgentState::Relayed)
            | (AgentState::Ended(_), AgentState::Ended(_)) => return false,
            other => panic!("they disagree: {other:?}"),
        };
        for side in 0..2 {
            let (own, peers) = (keys[side], keys[1 - side]);
            let end = self
                .network
                .send(self.sides[side].host, own.transport, own.base, own.remote);
            let host = self.sides[1 - side].host;
            assert_eq!(
                end,
                PacketDelivery::Host {
                    host,
                    from: peers.remote,
                    to: peers.base
                },
                "{keys:?}"
            );
            if own.transport == Transport::Tcp {
                assert_eq!(
                    self.sides[side]
                        .stack
                        .connection_phase(&(own.base, own.remote)),
                    Some(TcpPhase::Established)
                );
            }
        }
        true
    }
}
