//! What holds whatever happens: drawn at random.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use proptest::prelude::*;

use crate::punch::agent::{Action, Agent, Event, Message, Settings, State};
use crate::punch::candidate::{Candidate, Key, Kind, Transport};
use crate::punch::probe::Probe;
use crate::punch::session::{Role, Session};

use super::sites::{all, apart};
use super::world::{Weather, grant, identity};

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// In whatever weather, both come to an end, and to the same; `is_direct` panics when they do not.
    #[test]
    fn both_sides_end_with_the_same(
        (a, b) in (0..all().len(), 0..all().len()),
        loss in 0.0..0.9f64,
        delay in (0u64..400, 0u64..400),
        both: bool,
        relay: bool,
        seed: u64,
    ) {
        let (kinds, settings) = (all(), Settings { relay, ..Settings::default() });
        let mut world = apart(&kinds[a].1, &kinds[b].1, &settings, seed >> 1);
        world.weather = Weather { loss, twice: 0.1, delay };
        world.gather(if both { &[Transport::Udp, Transport::Tcp] } else { &[Transport::Udp] });
        world.run(Duration::from_secs(13));
        for side in &world.sides {
            prop_assert_ne!(side.agent.state(), State::Looking);
        }
        world.is_direct();
    }
}

#[derive(Debug, Clone)]
enum Step {
    Event(Event),
    /// The peer's probe comes from somewhere.
    Probe {
        from: SocketAddr,
        ask: Option<u64>,
        answer: Option<u64>,
        nominates: Option<u16>,
        stream: bool,
    },
    Pass(u64),
}

const BASE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), 40_000);

fn addr() -> impl Strategy<Value = SocketAddr> {
    (1u8..6, 5_000u16..5_004).prop_map(|(host, port)| SocketAddr::from(([192, 0, 2, host], port)))
}

fn transport() -> impl Strategy<Value = Transport> {
    prop_oneof![Just(Transport::Udp), Just(Transport::Tcp)]
}

fn candidate() -> impl Strategy<Value = Candidate> {
    (transport(), addr(), any::<u16>()).prop_map(|(transport, addr, n)| Candidate::new(Kind::Host, transport, addr, n))
}

fn event() -> impl Strategy<Value = Event> {
    let key = || addr().prop_map(|remote| Key { transport: Transport::Tcp, base: BASE, remote });
    prop_oneof![
        2 => (transport(), addr()).prop_map(|(transport, addr)| {
            Event::Local { kind: Kind::Reflexive, transport, addr, base: BASE }
        }),
        1 => Just(Event::Gathered),
        3 => prop::collection::vec(candidate(), 0..20).prop_map(|all| Event::Told(Message::Offer(all))),
        1 => Just(Event::Told(Message::Relay)),
        2 => (addr(), prop::collection::vec(any::<u8>(), 0..110))
            .prop_map(|(from, bytes)| Event::Datagram { base: BASE, from, bytes }),
        3 => key().prop_map(Event::Connected),
        2 => key().prop_map(Event::Ended),
        1 => Just(Event::Heard),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let numbers = (prop::option::of(1u64..80), prop::option::of(1u64..20), prop::option::weighted(0.2, 1u16..4));
    prop_oneof![
        4 => event().prop_map(Step::Event),
        4 => (addr(), numbers, any::<bool>()).prop_map(|(from, (ask, answer, nominates), stream)| {
            Step::Probe { from, ask, answer, nominates, stream }
        }),
        4 => (0u64..400).prop_map(Step::Pass),
    ]
}

struct Watched {
    agent: Agent,
    peer: Session,
    now: Instant,
    /// First probes and dials, by address; addresses of which something authentic came are not counted.
    firsts: BTreeMap<SocketAddr, u32>,
    proven: BTreeSet<SocketAddr>,
}

impl Watched {
    fn new(leads: bool) -> Self {
        let (now, me) = (Instant::now(), usize::from(!leads));
        let session = |me: usize| {
            Session::new(&grant(0), &identity(me), &identity(1 - me), now + Duration::from_secs(60)).unwrap()
        };
        let agent = Agent::new(session(me), Settings::default(), 5, now);
        let (firsts, proven) = (BTreeMap::new(), BTreeSet::new());
        let mut watched = Self { agent, peer: session(1 - me), now, firsts, proven };
        for transport in [Transport::Udp, Transport::Tcp] {
            watched.give(Event::Local { kind: Kind::Host, transport, addr: BASE, base: BASE });
        }
        watched
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Event(event) => self.give(event),
            Step::Pass(ms) => {
                self.now += Duration::from_millis(ms);
                self.give(Event::Tick);
            }
            Step::Probe { from, ask, answer, nominates, stream } => {
                if ask.is_none() && answer.is_none() {
                    return;
                }
                let probe = Probe { from: self.peer.role, nonce: 9, ask, answer, nominates, seen: None };
                let bytes = probe.encode(&self.peer).to_vec();
                self.proven.insert(from);
                let key = Key { transport: Transport::Tcp, base: BASE, remote: from };
                self.give(if stream {
                    Event::Read { key, bytes }
                } else {
                    Event::Datagram { base: BASE, from, bytes }
                });
            }
        }
    }

    fn give(&mut self, event: Event) {
        let came = matches!(event, Event::Datagram { .. }) as usize;
        let actions = self.agent.take(event, self.now);
        let sent = |action: &&Action| matches!(action, Action::Send { .. });
        // An answer, and besides one first probe and one nomination, keep-alive or choice.
        assert!(actions.iter().filter(sent).count() <= came + 2, "{actions:?}");
        for action in actions {
            assert!(!matches!(action, Action::Wake { at } if at <= self.now), "it wants to be woken at once, for ever");
            if let Action::Send { key, .. } | Action::Dial { key, .. } = action
                && !self.proven.contains(&key.remote)
            {
                *self.firsts.entry(key.remote).or_default() += 1;
            }
        }
        let settings = Settings::default();
        assert!(self.firsts.values().all(|&count| count <= 2 * settings.tries), "{:?}", self.firsts);
        assert!(self.firsts.values().sum::<u32>() <= settings.tries_in_all);
    }
}

proptest! {
    #[test]
    fn whatever_comes_little_goes_where_nobody_has_proven_to_be(leads: bool, steps in prop::collection::vec(step(), 0..150)) {
        let mut watched = Watched::new(leads);
        prop_assert_eq!(watched.agent.role() == Role::Leader, leads);
        steps.into_iter().for_each(|step| watched.take(step));
    }
}
