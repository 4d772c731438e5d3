//! Late and missing events.

use std::time::{Duration, Instant};

use crate::punch::agent::{
    AgentAction, AgentEvent, AgentState, PunchAgent, PunchFailure, PunchSettings,
};
use crate::punch::candidate::{CandidateKind, Transport};
use crate::punch::probe::Probe;
use crate::punch::session::{PunchSession, SessionRole};

use super::network::PacketDelivery;
use super::sites::{site_named, world_apart};
use super::world::{SimWorld, session_grant, side_identity};

const RUN_TIME: Duration = Duration::from_secs(14);

fn port_restricted_world(seed: u64) -> SimWorld {
    world_apart(
        &site_named("port_restricted"),
        &site_named("port_restricted"),
        &PunchSettings::default(),
        seed,
    )
}

fn gather_host(world: &mut SimWorld, side: usize) {
    let base = world.base(side);
    world.deliver_event(
        side,
        AgentEvent::LocalCandidate {
            kind: CandidateKind::Host,
            transport: Transport::Udp,
            addr: base,
            base,
        },
    );
    world.deliver_event(side, AgentEvent::Gathered);
}

fn gather_reflexive(world: &mut SimWorld, side: usize) {
    let (base, host) = (world.base(side), world.sides[side].host);
    let PacketDelivery::Host { from: addr, .. } =
        world
            .network
            .send(host, Transport::Udp, base, world.rendezvous)
    else {
        panic!()
    };
    world.deliver_event(
        side,
        AgentEvent::LocalCandidate {
            kind: CandidateKind::Reflexive,
            transport: Transport::Udp,
            addr,
            base,
        },
    );
    world.deliver_event(side, AgentEvent::Gathered);
}

#[test]
fn late_candidates_still_connect() {
    for seed in 0..50 {
        let mut world = port_restricted_world(seed);
        (0..2).for_each(|side| gather_host(&mut world, side));
        world.run(Duration::from_millis(1_500));
        assert!(
            world
                .sides
                .iter()
                .all(|side| side.agent.state() == AgentState::Searching)
        );
        (0..2).for_each(|side| gather_reflexive(&mut world, side));
        world.run(RUN_TIME);
        assert!(world.is_direct(), "seed {seed}");
    }
}

#[test]
fn a_late_peer_still_connects() {
    for (seed, late) in (0..50).map(|seed| (seed, usize::from(seed % 2 == 0))) {
        let mut world = port_restricted_world(seed);
        gather_host(&mut world, 1 - late);
        gather_reflexive(&mut world, 1 - late);
        world.run(Duration::from_secs(4));
        world.now = Duration::from_secs(4);
        gather_host(&mut world, late);
        gather_reflexive(&mut world, late);
        world.run(RUN_TIME);
        assert!(world.is_direct(), "seed {seed}");
    }
}

/// Ticks an agent until it wants no more wakeups. Returns the time that took.
fn run_alone(agent: &mut PunchAgent, start: Instant) -> Duration {
    let mut now = start;
    let mut actions = agent.handle_event(AgentEvent::Gathered, now);
    while let Some(at) = actions.iter().rev().find_map(|action| match action {
        AgentAction::Wake { at } => Some(*at),
        _ => None,
    }) {
        now = at;
        actions = agent.handle_event(AgentEvent::Tick, now);
    }
    now - start
}

fn new_agent(me: usize, settings: &PunchSettings, lifetime: Duration) -> (PunchAgent, Instant) {
    let start = Instant::now();
    let session = PunchSession::new(
        &session_grant(1),
        &side_identity(me),
        &side_identity(1 - me),
        start + lifetime,
    )
    .unwrap();
    (PunchAgent::new(session, settings.clone(), 7, start), start)
}

#[test]
fn a_missing_peer_ends_the_search() {
    let settings = PunchSettings {
        allow_relay: false,
        ..PunchSettings::default()
    };
    for (me, timeouts) in [(0, 1), (1, 2)] {
        let (mut agent, start) = new_agent(me, &settings, Duration::from_secs(60));
        assert_eq!(
            run_alone(&mut agent, start),
            settings.search_timeout * timeouts
        );
        assert_eq!(agent.state(), AgentState::Ended(PunchFailure::NoOffer));
        assert!(
            agent.handle_event(AgentEvent::Tick, start).is_empty(),
            "an end is an end"
        );
    }
}

#[test]
fn an_expired_session_ends_the_search() {
    let settings = PunchSettings {
        allow_relay: false,
        ..PunchSettings::default()
    };
    let (mut agent, start) = new_agent(0, &settings, Duration::from_secs(1));
    assert_eq!(run_alone(&mut agent, start), Duration::from_secs(1));
    assert_eq!(agent.state(), AgentState::Ended(PunchFailure::Expired));
}

/// Encodes the peer's request number 1, from a process with this nonce.
fn request_bytes(nonce: u64) -> Vec<u8> {
    let session = PunchSession::new(
        &session_grant(1),
        &side_identity(1),
        &side_identity(0),
        Instant::now(),
    )
    .unwrap();
    let probe = Probe {
        sender: SessionRole::Follower,
        nonce,
        request: Some(nonce),
        response: None,
        nomination: None,
        mapped_addr: None,
    };
    probe.encode(&session).to_vec()
}

fn count_responses(agent: &mut PunchAgent, nonce: u64, now: Instant) -> usize {
    let (base, from) = (
        "10.0.0.1:40000".parse().unwrap(),
        "192.0.2.1:40000".parse().unwrap(),
    );
    agent.handle_event(
        AgentEvent::LocalCandidate {
            kind: CandidateKind::Host,
            transport: Transport::Udp,
            addr: base,
            base,
        },
        now,
    );
    let actions = agent.handle_event(
        AgentEvent::Datagram {
            base,
            from,
            bytes: request_bytes(nonce),
        },
        now,
    );
    actions
        .iter()
        .filter(|action| matches!(action, AgentAction::Send { .. }))
        .count()
}

#[test]
fn requests_after_expiry_or_with_another_nonce_get_no_response() {
    let (mut one, start) = new_agent(0, &PunchSettings::default(), Duration::from_secs(1));
    assert_eq!(count_responses(&mut one, 5, start), 1);
    assert_eq!(count_responses(&mut one, 6, start), 0, "another nonce");
    let (mut other, start) = new_agent(0, &PunchSettings::default(), Duration::from_secs(1));
    assert_eq!(
        count_responses(&mut other, 5, start + Duration::from_secs(1)),
        0,
        "the session has ended"
    );
}
