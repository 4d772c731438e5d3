//! What comes late, or not at all.

use std::time::{Duration, Instant};

use crate::punch::agent::{Action, Agent, Event, Reason, Settings, State};
use crate::punch::candidate::{Kind, Transport};
use crate::punch::probe::Probe;
use crate::punch::session::{Role, Session};

use super::network::End;
use super::sites::{apart, named};
use super::world::{World, grant, identity};

const END: Duration = Duration::from_secs(14);

fn pair_restricted(seed: u64) -> World {
    apart(&named("port_restricted"), &named("port_restricted"), &Settings::default(), seed)
}

fn gather_host(world: &mut World, side: usize) {
    let base = world.base(side);
    world.give(side, Event::Local { kind: Kind::Host, transport: Transport::Udp, addr: base, base });
    world.give(side, Event::Gathered);
}

fn gather_reflexive(world: &mut World, side: usize) {
    let (base, host) = (world.base(side), world.sides[side].host);
    let End::Host { from: addr, .. } = world.network.send(host, Transport::Udp, base, world.rendezvous) else {
        panic!()
    };
    world.give(side, Event::Local { kind: Kind::Reflexive, transport: Transport::Udp, addr, base });
    world.give(side, Event::Gathered);
}

#[test]
fn candidates_that_come_late_are_as_good() {
    for seed in 0..50 {
        let mut world = pair_restricted(seed);
        (0..2).for_each(|side| gather_host(&mut world, side));
        world.run(Duration::from_millis(1_500));
        assert!(world.sides.iter().all(|side| side.agent.state() == State::Looking));
        (0..2).for_each(|side| gather_reflexive(&mut world, side));
        world.run(END);
        assert!(world.is_direct(), "seed {seed}");
    }
}

#[test]
fn a_peer_that_comes_late_is_waited_for() {
    for (seed, late) in (0..50).map(|seed| (seed, usize::from(seed % 2 == 0))) {
        let mut world = pair_restricted(seed);
        gather_host(&mut world, 1 - late);
        gather_reflexive(&mut world, 1 - late);
        world.run(Duration::from_secs(4));
        world.now = Duration::from_secs(4);
        gather_host(&mut world, late);
        gather_reflexive(&mut world, late);
        world.run(END);
        assert!(world.is_direct(), "seed {seed}");
    }
}

/// Ticks an agent when it wants to, until it wants nothing any more: how long that took.
fn alone(agent: &mut Agent, start: Instant) -> Duration {
    let mut now = start;
    let mut actions = agent.take(Event::Gathered, now);
    while let Some(at) = actions.iter().rev().find_map(|action| match action {
        Action::Wake { at } => Some(*at),
        _ => None,
    }) {
        now = at;
        actions = agent.take(Event::Tick, now);
    }
    now - start
}

fn agent(me: usize, settings: &Settings, lasts: Duration) -> (Agent, Instant) {
    let start = Instant::now();
    let session = Session::new(&grant(1), &identity(me), &identity(1 - me), start + lasts).unwrap();
    (Agent::new(session, settings.clone(), 7, start), start)
}

#[test]
fn a_peer_that_does_not_come_is_given_up() {
    let settings = Settings { relay: false, ..Settings::default() };
    for (me, patiences) in [(0, 1), (1, 2)] {
        let (mut agent, start) = agent(me, &settings, Duration::from_secs(60));
        assert_eq!(alone(&mut agent, start), settings.patience * patiences);
        assert_eq!(agent.state(), State::Ended(Reason::NoOffer));
        assert!(agent.take(Event::Tick, start).is_empty(), "an end is an end");
    }
}

#[test]
fn a_session_that_ends_first_is_given_up_then() {
    let settings = Settings { relay: false, ..Settings::default() };
    let (mut agent, start) = agent(0, &settings, Duration::from_secs(1));
    assert_eq!(alone(&mut agent, start), Duration::from_secs(1));
    assert_eq!(agent.state(), State::Ended(Reason::Expired));
}

/// The peer's ask number 1, from a process with this nonce.
fn ask(nonce: u64) -> Vec<u8> {
    let session = Session::new(&grant(1), &identity(1), &identity(0), Instant::now()).unwrap();
    let probe = Probe { from: Role::Follower, nonce, ask: Some(nonce), answer: None, nominates: None, seen: None };
    probe.encode(&session).to_vec()
}

fn answers(agent: &mut Agent, nonce: u64, now: Instant) -> usize {
    let (base, from) = ("10.0.0.1:40000".parse().unwrap(), "192.0.2.1:40000".parse().unwrap());
    agent.take(Event::Local { kind: Kind::Host, transport: Transport::Udp, addr: base, base }, now);
    let actions = agent.take(Event::Datagram { base, from, bytes: ask(nonce) }, now);
    actions.iter().filter(|action| matches!(action, Action::Send { .. })).count()
}

#[test]
fn nothing_is_answered_after_the_end_nor_to_another_process_of_the_peers() {
    let (mut one, start) = agent(0, &Settings::default(), Duration::from_secs(1));
    assert_eq!(answers(&mut one, 5, start), 1);
    assert_eq!(answers(&mut one, 6, start), 0, "another nonce");
    let (mut other, start) = agent(0, &Settings::default(), Duration::from_secs(1));
    assert_eq!(answers(&mut other, 5, start + Duration::from_secs(1)), 0, "the session has ended");
}
