//! Two agents, the networks between them, and a clock that is moved on.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use nearpath_types::SpiffeId;

use crate::punch::agent::{Action, Agent, Event, Message, Settings, State};
use crate::punch::candidate::{Key, Kind, Transport};
use crate::punch::session::{Grant, Session};

use super::network::{End, Network, PUBLIC};
use super::tcp::{Heard, Phase, Segment, Stack, What};

pub(super) const PORT: u16 = 40_000;

/// What befalls packets.
#[derive(Debug, Clone, Copy)]
pub(super) struct Weather {
    pub(super) loss: f64,
    pub(super) twice: f64,
    /// One way, in milliseconds: at least, and so much more at most.
    pub(super) delay: (u64, u64),
}

impl Weather {
    pub(super) const BAD: Self = Self { loss: 0.1, twice: 0.02, delay: (5, 20) };
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Payload {
    Datagram(Vec<u8>),
    Segment(Segment),
}

impl Payload {
    pub(super) fn transport(&self) -> Transport {
        match self {
            Self::Datagram(_) => Transport::Udp,
            Self::Segment(_) => Transport::Tcp,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Packet {
    pub(super) from: SocketAddr,
    pub(super) to: SocketAddr,
    pub(super) payload: Payload,
}

#[derive(Debug)]
enum Due {
    Arrive {
        host: usize,
        packet: Packet,
    },
    Told {
        side: usize,
        message: Message,
    },
    Wake {
        side: usize,
        at: Duration,
    },
    Patience {
        side: usize,
        key: Key,
        dial: u64,
    },
    /// A half-open connection says its SYN or SYN-ACK once more.
    Again {
        side: usize,
        key: Key,
        number: u64,
        left: u8,
    },
}

pub(super) struct Side {
    pub(super) agent: Agent,
    pub(super) host: usize,
    pub(super) ip: IpAddr,
    pub(super) stack: Stack,
    wake: Option<Duration>,
    /// What it was told to use, in order; `None`: the relay.
    pub(super) used: Vec<Option<Key>>,
    pub(super) settled: Option<Duration>,
}

/// Where a side stands: network and address.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) realm: usize,
    pub(super) ip: IpAddr,
}

pub(super) struct World {
    pub(super) network: Network,
    pub(super) sides: Vec<Side>,
    pub(super) weather: Weather,
    start: Instant,
    pub(super) now: Duration,
    due: BinaryHeap<Reverse<(Duration, u64)>>,
    what: BTreeMap<u64, Due>,
    next: u64,
    pub(super) rendezvous: SocketAddr,
    pub(super) random: fastrand::Rng,
    /// When the last segment of a stream arrives: they do not overtake each other.
    streams: BTreeMap<(usize, Key), Duration>,
    /// All that was sent, as it left the host.
    pub(super) sent: Vec<(usize, Packet)>,
    /// What arrived at hosts that are no side.
    pub(super) strays: Vec<(usize, Packet)>,
}

pub(super) fn identity(side: usize) -> SpiffeId {
    SpiffeId::gateway("test", ["a", "b"][side])
}

pub(super) fn grant(seed: u64) -> Grant {
    Grant { id: u128::from(seed + 1).to_le_bytes(), secret: [7; 32], expires: 1_800_000_000 }
}

impl World {
    /// Two agents that share a session, each in its place.
    pub(super) fn new(mut network: Network, places: [Place; 2], settings: &Settings, seed: u64) -> Self {
        let start = Instant::now();
        let rendezvous = SocketAddr::from(([203, 0, 113, 1], 3478));
        network.host(PUBLIC, rendezvous.ip());
        let sides = (0..2).map(|side| {
            let until = start + Duration::from_secs(60);
            let session = Session::new(&grant(seed), &identity(side), &identity(1 - side), until).unwrap();
            let agent = Agent::new(session, settings.clone(), seed * 2 + side as u64, start);
            let host = network.host(places[side].realm, places[side].ip);
            let (stack, used) = (Stack::default(), Vec::new());
            Side { agent, host, ip: places[side].ip, stack, wake: None, used, settled: None }
        });
        let sides = sides.collect();
        Self {
            sides,
            network,
            weather: Weather::BAD,
            start,
            now: Duration::ZERO,
            due: BinaryHeap::new(),
            what: BTreeMap::new(),
            next: 0,
            rendezvous,
            random: fastrand::Rng::with_seed(seed),
            streams: BTreeMap::new(),
            sent: Vec::new(),
            strays: Vec::new(),
        }
    }

    pub(super) fn base(&self, side: usize) -> SocketAddr {
        SocketAddr::new(self.sides[side].ip, PORT)
    }

    /// Each side gathers its candidates, with the rendezvous' help, and offers them.
    pub(super) fn gather(&mut self, transports: &[Transport]) {
        for side in 0..2 {
            let base = self.base(side);
            for &transport in transports {
                self.give(side, Event::Local { kind: Kind::Host, transport, addr: base, base });
                let end = self.network.send(self.sides[side].host, transport, base, self.rendezvous);
                if let End::Host { from, .. } = end {
                    self.give(side, Event::Local { kind: Kind::Reflexive, transport, addr: from, base });
                }
            }
            self.give(side, Event::Gathered);
        }
    }

    /// Until nothing is due any more, or so much time has passed.
    pub(super) fn run(&mut self, until: Duration) {
        while self.step(until) {}
    }

    pub(super) fn step(&mut self, until: Duration) -> bool {
        let Some(&Reverse((at, number))) = self.due.peek() else { return false };
        if at > until {
            return false;
        }
        self.due.pop();
        self.now = at;
        match self.what.remove(&number).unwrap() {
            Due::Arrive { host, packet } => self.arrive(host, packet),
            Due::Told { side, message } => self.give(side, Event::Told(message)),
            Due::Wake { side, at } if self.sides[side].wake == Some(at) => self.give(side, Event::Tick),
            Due::Wake { .. } => (),
            Due::Patience { side, key, dial } => {
                if let Some(last) = self.sides[side].stack.abandon(&(key.base, key.remote), dial) {
                    self.say(side, key, last);
                    self.give(side, Event::Ended(key));
                }
            }
            Due::Again { side, key, number, left } => self.again(side, key, number, left),
        }
        true
    }

    fn later(&mut self, at: Duration, due: Due) {
        self.what.insert(self.next, due);
        self.due.push(Reverse((at, self.next)));
        self.next += 1;
    }

    pub(super) fn give(&mut self, side: usize, event: Event) {
        let now = self.start + self.now;
        let actions = self.sides[side].agent.take(event, now);
        actions.into_iter().for_each(|action| self.act(side, action));
        if self.sides[side].settled.is_none() && self.sides[side].agent.state() != State::Looking {
            self.sides[side].settled = Some(self.now);
        }
    }

    fn act(&mut self, side: usize, action: Action) {
        match action {
            Action::Tell(message) => {
                let delay = Duration::from_millis(self.random.u64(5..40));
                self.later(self.now + delay, Due::Told { side: 1 - side, message });
            }
            Action::Send { key, bytes } => self.send(side, key, Payload::Datagram(bytes.to_vec())),
            Action::Write { key, bytes } => {
                let data = self.sides[side].stack.says(&(key.base, key.remote), What::Data(bytes.to_vec()));
                self.say(side, key, data);
            }
            Action::Listen { .. } => self.sides[side].stack.listening = true,
            Action::Dial { key, patience } => self.dial(side, key, patience),
            Action::Close(key) => {
                let last = self.sides[side].stack.close(&(key.base, key.remote));
                self.say(side, key, last);
            }
            Action::UseRelay => self.sides[side].used.push(None),
            Action::Use(key) => self.sides[side].used.push(Some(key)),
            Action::Wake { at } => {
                let at = at - self.start;
                self.sides[side].wake = Some(at);
                self.later(at.max(self.now), Due::Wake { side, at });
            }
            Action::GiveUp(_) => (),
        }
    }

    fn dial(&mut self, side: usize, key: Key, patience: Duration) {
        let Some(dial) = self.sides[side].stack.dial((key.base, key.remote)) else { return };
        self.later(self.now + patience, Due::Patience { side, key, dial });
        if patience > Duration::from_secs(1) {
            self.later(self.now + Duration::from_secs(1), Due::Again { side, key, number: dial, left: 1 });
        }
        let syn = self.sides[side].stack.says(&(key.base, key.remote), What::Syn);
        self.say(side, key, syn);
    }

    fn say(&mut self, side: usize, key: Key, segment: Option<Segment>) {
        if let Some(segment) = segment {
            self.send(side, key, Payload::Segment(segment));
        }
    }

    pub(super) fn send(&mut self, side: usize, key: Key, payload: Payload) {
        let packet = Packet { from: key.base, to: key.remote, payload };
        self.emit(self.sides[side].host, packet, Some((side, key)));
    }

    /// Whoever holds a host sends a packet from there, with whatever sender's address.
    pub(super) fn emit(&mut self, host: usize, packet: Packet, of: Option<(usize, Key)>) {
        self.sent.push((host, packet.clone()));
        let times = if self.random.f64() < self.weather.twice { 2 } else { 1 };
        for _ in 0..times {
            let end = self.network.send(host, packet.payload.transport(), packet.from, packet.to);
            let in_order = matches!(packet.payload, Payload::Segment(Segment { what: What::Data(_), .. }));
            let lost = self.random.f64() < self.weather.loss;
            match end {
                _ if lost && !in_order => (),
                End::Host { host, from, to } => {
                    let at = self.arrival(lost, of.filter(|_| in_order));
                    let packet = Packet { from, to, payload: packet.payload.clone() };
                    self.later(at, Due::Arrive { host, packet });
                }
                End::Refused { realm, from, to } => self.refuse(realm, from, to, &packet.payload),
                End::Lost => (),
            }
            if in_order {
                return; // a stream's bytes come once
            }
        }
    }

    /// A stream's segment that is lost comes later, after all before it.
    fn arrival(&mut self, lost: bool, stream: Option<(usize, Key)>) -> Duration {
        let (least, more) = self.weather.delay;
        let delay = Duration::from_millis(least + self.random.u64(0..=more));
        let at = self.now + delay + if lost { Duration::from_millis(200) } else { Duration::ZERO };
        let Some(stream) = stream else { return at };
        let last = self.streams.entry(stream).or_default();
        *last = at.max(*last + Duration::from_nanos(1));
        *last
    }

    fn refuse(&mut self, realm: usize, from: SocketAddr, to: SocketAddr, refused: &Payload) {
        let Payload::Segment(refused) = refused else { return };
        if let End::Host { host, from, to } = self.network.route(realm, Transport::Tcp, to, from) {
            let packet = Packet { from, to, payload: Payload::Segment(refused.refused()) };
            let at = self.arrival(false, None);
            self.later(at, Due::Arrive { host, packet });
        }
    }

    fn arrive(&mut self, host: usize, packet: Packet) {
        let Some(side) = self.sides.iter().position(|side| side.host == host) else {
            return self.strays.push((host, packet));
        };
        if packet.to != self.base(side) {
            return;
        }
        match packet.payload {
            Payload::Datagram(bytes) => {
                self.give(side, Event::Datagram { base: packet.to, from: packet.from, bytes });
            }
            Payload::Segment(segment) => self.segment(side, packet.to, packet.from, segment),
        }
    }

    fn segment(&mut self, side: usize, base: SocketAddr, remote: SocketAddr, segment: Segment) {
        let key = Key { transport: Transport::Tcp, base, remote };
        let (answer, heard) = self.sides[side].stack.segment((base, remote), segment);
        if let Some(Segment { what: What::SynAck, number, .. }) = answer {
            self.later(self.now + Duration::from_secs(1), Due::Again { side, key, number, left: 3 });
        }
        self.say(side, key, answer);
        for heard in heard {
            let taken = matches!(heard, Heard::Read(_)) && self.sides[side].used.last() == Some(&Some(key));
            assert!(!taken, "a probe comes on a connection of which the rest belongs to TLS");
            let event = match heard {
                Heard::Connected => Event::Connected(key),
                Heard::Read(bytes) => Event::Read { key, bytes },
                Heard::Ended => Event::Ended(key),
            };
            self.give(side, event);
        }
    }

    /// The kernel says its SYN once more after a second, its SYN-ACK three times.
    fn again(&mut self, side: usize, key: Key, number: u64, left: u8) {
        let tuple = (key.base, key.remote);
        let stack = &mut self.sides[side].stack;
        let what = match stack.phase_of(&tuple, number) {
            Some(Phase::SynSent) => What::Syn,
            Some(Phase::SynReceived) => What::SynAck,
            Some(Phase::Established) | None => return,
        };
        if what == What::SynAck && left == 0 {
            return stack.forget(&tuple);
        }
        let segment = stack.says(&tuple, what);
        self.say(side, key, segment);
        if left > 0 {
            self.later(self.now + Duration::from_secs(1), Due::Again { side, key, number, left: left - 1 });
        }
    }

    /// Whether both are on one pair, which carries packets both ways; a panic when they disagree.
    pub(super) fn is_direct(&mut self) -> bool {
        let keys = match (self.sides[0].agent.state(), self.sides[1].agent.state()) {
            (State::Direct(a), State::Direct(b)) => [a, b],
            (State::Relayed, State::Relayed) | (State::Ended(_), State::Ended(_)) => return false,
            other => panic!("they disagree: {other:?}"),
        };
        for side in 0..2 {
            let (own, peers) = (keys[side], keys[1 - side]);
            let end = self.network.send(self.sides[side].host, own.transport, own.base, own.remote);
            let host = self.sides[1 - side].host;
            assert_eq!(end, End::Host { host, from: peers.remote, to: peers.base }, "{keys:?}");
            if own.transport == Transport::Tcp {
                assert_eq!(self.sides[side].stack.phase(&(own.base, own.remote)), Some(Phase::Established));
            }
        }
        true
    }
}
