//! Properties that hold for random inputs.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use proptest::prelude::*;

use crate::punch::agent::{
    AgentAction, AgentEvent, AgentState, PunchAgent, PunchMessage, PunchSettings,
};
use crate::punch::candidate::{Candidate, CandidateKind, PairKey, Transport};
use crate::punch::probe::Probe;
use crate::punch::session::{PunchSession, SessionRole};

use super::sites::{all, world_apart};
use super::world::{NetworkConditions, session_grant, side_identity};

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// On any network both sides end, and with the same result; `is_direct` panics otherwise.
    #[test]
    fn both_sides_end_with_the_same(
        (a, b) in (0..all().len(), 0..all().len()),
        loss in 0.0..0.9f64,
        delay in (0u64..400, 0u64..400),
        both: bool,
        allow_relay: bool,
        seed: u64,
    ) {
        let (kinds, settings) = (all(), PunchSettings { allow_relay, ..PunchSettings::default() });
        let mut world = world_apart(&kinds[a].1, &kinds[b].1, &settings, seed >> 1);
        world.conditions = NetworkConditions { loss, duplication: 0.1, delay };
        world.gather_candidates(if both { &[Transport::Udp, Transport::Tcp] } else { &[Transport::Udp] });
        world.run(Duration::from_secs(13));
        for side in &world.sides {
            prop_assert_ne!(side.agent.state(), AgentState::Searching);
        }
        world.is_direct();
    }
}

#[derive(Debug, Clone)]
enum AgentStep {
    Event(AgentEvent),
    /// Probe of the peer from some address.
    Probe {
        from: SocketAddr,
        ask: Option<u64>,
        answer: Option<u64>,
        nominates: Option<u16>,
        stream: bool,
    },
    Advance(u64),
}

const AGENT_BASE: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), 40_000);

fn any_addr() -> impl Strategy<Value = SocketAddr> {
    (1u8..6, 5_000u16..5_004).prop_map(|(host, port)| SocketAddr::from(([192, 0, 2, host], port)))
}

fn any_transport() -> impl Strategy<Value = Transport> {
    prop_oneof![Just(Transport::Udp), Just(Transport::Tcp)]
}

fn any_candidate() -> impl Strategy<Value = Candidate> {
    (any_transport(), any_addr(), any::<u16>())
        .prop_map(|(transport, addr, n)| Candidate::new(CandidateKind::Host, transport, addr, n))
}

fn any_event() -> impl Strategy<Value = AgentEvent> {
    let key = || {
        any_addr().prop_map(|remote| PairKey {
            transport: Transport::Tcp,
            base: AGENT_BASE,
            remote,
        })
    };
    prop_oneof![
        2 => (any_transport(), any_addr()).prop_map(|(transport, addr)| {
            AgentEvent::LocalCandidate { kind: CandidateKind::Reflexive, transport, addr, base: AGENT_BASE }
        }),
        1 => Just(AgentEvent::Gathered),
        3 => prop::collection::vec(any_candidate(), 0..20).prop_map(|all| AgentEvent::PeerMessage(PunchMessage::Offer(all))),
        1 => Just(AgentEvent::PeerMessage(PunchMessage::FallBack)),
        2 => (any_addr(), prop::collection::vec(any::<u8>(), 0..110))
            .prop_map(|(from, bytes)| AgentEvent::Datagram { base: AGENT_BASE, from, bytes }),
        3 => key().prop_map(AgentEvent::Connected),
        2 => key().prop_map(AgentEvent::Disconnected),
        1 => Just(AgentEvent::PeerAlive),
    ]
}

fn any_step() -> impl Strategy<Value = AgentStep> {
    let numbers = (
        prop::option::of(1u64..80),
        prop::option::of(1u64..20),
        prop::option::weighted(0.2, 1u16..4),
    );
    prop_oneof![
        4 => any_event().prop_map(AgentStep::Event),
        4 => (any_addr(), numbers, any::<bool>()).prop_map(|(from, (ask, answer, nominates), stream)| {
            AgentStep::Probe { from, ask, answer, nominates, stream }
        }),
        4 => (0u64..400).prop_map(AgentStep::Advance),
    ]
}

struct WatchedAgent {
    agent: PunchAgent,
    peer: PunchSession,
    now: Instant,
    /// First probes and dials by address; addresses that sent authentic data are not counted.
    unproven_sends: BTreeMap<SocketAddr, u32>,
    proven: BTreeSet<SocketAddr>,
}

impl WatchedAgent {
    fn new(leads: bool) -> Self {
        let (now, me) = (Instant::now(), usize::from(!leads));
        let session = |me: usize| {
            PunchSession::new(
                &session_grant(0),
                &side_identity(me),
                &side_identity(1 - me),
                now + Duration::from_secs(60),
            )
            .unwrap()
        };
        let agent = PunchAgent::new(session(me), PunchSettings::default(), 5, now);
        let (firsts, proven) = (BTreeMap::new(), BTreeSet::new());
        let mut watched = Self {
            agent,
            peer: session(1 - me),
            now,
            unproven_sends: firsts,
            proven,
        };
        for transport in [Transport::Udp, Transport::Tcp] {
            watched.deliver(AgentEvent::LocalCandidate {
                kind: CandidateKind::Host,
                transport,
                addr: AGENT_BASE,
                base: AGENT_BASE,
            });
        }
        watched
    }

    fn apply(&mut self, step: AgentStep) {
        match step {
            AgentStep::Event(event) => self.deliver(event),
            AgentStep::Advance(ms) => {
                self.now += Duration::from_millis(ms);
                self.deliver(AgentEvent::Tick);
            }
            AgentStep::Probe {
                from,
                ask,
                answer,
                nominates,
                stream,
            } => {
                if ask.is_none() && answer.is_none() {
                    return;
                }
                let probe = Probe {
                    sender: self.peer.role,
                    nonce: 9,
                    request: ask,
                    response: answer,
                    nomination: nominates,
                    mapped_addr: None,
                };
                let bytes = probe.encode(&self.peer).to_vec();
                self.proven.insert(from);
                let key = PairKey {
                    transport: Transport::Tcp,
                    base: AGENT_BASE,
                    remote: from,
                };
                self.deliver(if stream {
                    AgentEvent::Read { key, bytes }
                } else {
                    AgentEvent::Datagram {
                        base: AGENT_BASE,
                        from,
                        bytes,
                    }
                });
            }
        }
    }

    fn deliver(&mut self, event: AgentEvent) {
        let came = matches!(event, AgentEvent::Datagram { .. }) as usize;
        let actions = self.agent.handle_event(event, self.now);
        let sent = |action: &&AgentAction| matches!(action, AgentAction::Send { .. });
        // One response, one first probe, and one nomination or keepalive at most.
        assert!(
            actions.iter().filter(sent).count() <= came + 2,
            "{actions:?}"
        );
        for action in actions {
            assert!(
                !matches!(action, AgentAction::Wake { at } if at <= self.now),
                "it wants to be woken at once, for ever"
            );
            if let AgentAction::Send { key, .. }
            | AgentAction::SendOpening { key, .. }
            | AgentAction::Dial { key, .. } = action
                && !self.proven.contains(&key.remote)
            {
                let opens = matches!(
                    action,
                    AgentAction::Dial {
                        opening: Some(_),
                        ..
                    }
                );
                *self.unproven_sends.entry(key.remote).or_default() += 1 + u32::from(opens);
            }
        }
        let settings = PunchSettings::default();
        assert!(
            self.unproven_sends
                .values()
                .all(|&count| count <= 2 * settings.max_tries),
            "{:?}",
            self.unproven_sends
        );
        assert!(self.unproven_sends.values().sum::<u32>() <= settings.max_tries_in_all);
    }
}

proptest! {
    #[test]
    fn few_probes_go_to_unproven_addresses_whatever_arrives(leads: bool, steps in prop::collection::vec(any_step(), 0..150)) {
        let mut watched = WatchedAgent::new(leads);
        prop_assert_eq!(watched.agent.role() == SessionRole::Leader, leads);
        steps.into_iter().for_each(|step| watched.apply(step));
    }
}
