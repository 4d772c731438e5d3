//! Somebody who is no party to the session: guesses, replays, forges; and a peer who names a victim.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use crate::punch::agent::{Event, Message, Settings, State};
use crate::punch::candidate::{Candidate, Kind, Transport};
use crate::punch::probe::Probe;
use crate::punch::session::{Grant, Role, Session};

use super::network::PUBLIC;
use super::sites::{apart, named};
use super::tcp::{Segment, What};
use super::world::{Packet, Payload, World, grant, identity};

const END: Duration = Duration::from_secs(14);
const VICTIM: SocketAddr = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 99)), 40_000);

/// Two sides on the public network, so that everybody reaches them, and a host that is neither.
fn world(seed: u64) -> (World, usize) {
    let mut world = apart(&named("none"), &named("none"), &Settings::default(), seed);
    let stranger = world.network.host(PUBLIC, VICTIM.ip());
    world.gather(&[Transport::Udp, Transport::Tcp]);
    (world, stranger)
}

fn datagram(from: SocketAddr, to: SocketAddr, bytes: Vec<u8>) -> Packet {
    Packet { from, to, payload: Payload::Datagram(bytes) }
}

fn ask(grant: &Grant, from: Role, number: u64) -> Vec<u8> {
    let (me, peer) = if from == Role::Leader { (0, 1) } else { (1, 0) };
    let session = Session::new(grant, &identity(me), &identity(peer), Instant::now()).unwrap();
    let probe = Probe { from, nonce: 1, ask: Some(number), answer: None, nominates: Some(1), seen: None };
    probe.encode(&session).to_vec()
}

/// What comes back when a stranger, who has this grant, asks both sides before they have spoken with each other.
fn answers_to(grant: &Grant, seed: u64) -> usize {
    let (mut world, stranger) = world(seed);
    world.weather.loss = 0.0;
    for (side, from) in [(0, Role::Follower), (1, Role::Leader)] {
        let to = world.base(side);
        (1..50).for_each(|number| world.emit(stranger, datagram(VICTIM, to, ask(grant, from, number)), None));
        world.emit(stranger, datagram(VICTIM, to, vec![0x0e; 100]), None);
        world.emit(stranger, datagram(VICTIM, to, Vec::new()), None);
    }
    world.run(END);
    assert!(world.is_direct(), "seed {seed}");
    world.strays.len()
}

#[test]
fn who_guesses_hears_nothing() {
    for seed in 0..20 {
        let guess = Grant { secret: [8; 32], ..grant(seed) };
        assert_eq!(answers_to(&guess, seed), 0, "seed {seed}");
        let other_end = Grant { expires: 1_800_000_001, ..grant(seed) };
        assert_eq!(answers_to(&other_end, seed), 0, "seed {seed}");
    }
}

#[test]
fn who_has_the_secret_is_answered_so_the_silence_above_means_something() {
    let (mut world, stranger) = world(1);
    world.weather.loss = 0.0;
    let to = world.base(1);
    world.emit(stranger, datagram(VICTIM, to, ask(&grant(1), Role::Leader, 1)), None);
    world.run(END);
    assert!(!world.strays.is_empty());
}

/// Every datagram is sent again, at once and later, with the victim's address as its sender's, and back to its sender.
/// `ahead`: the copy is the one that arrives.
fn replay(seed: u64, ahead: bool) -> (World, usize) {
    let (mut world, stranger) = world(seed);
    let (mut looked, mut emitted) = (0, 0);
    while world.step(END) {
        let new: Vec<Packet> = world.sent[looked..].iter().map(|(_, packet)| packet.clone()).collect();
        for packet in new {
            let Payload::Datagram(bytes) = packet.payload else { continue };
            let weather = world.weather;
            if ahead {
                (world.weather.loss, world.weather.delay) = (0.0, (0, 0));
            }
            let forged = [datagram(VICTIM, packet.to, bytes.clone()), datagram(packet.to, packet.from, bytes)];
            for packet in forged {
                world.emit(stranger, packet, None);
                emitted += 1;
            }
            world.weather = weather;
        }
        looked = world.sent.len();
    }
    (world, emitted)
}

#[test]
fn who_replays_gets_no_session_and_no_more_to_a_victim_than_he_sends() {
    for seed in 0..20 {
        for ahead in [false, true] {
            let (mut world, emitted) = replay(seed, ahead);
            let strays = world.strays.len();
            assert!(strays <= emitted && strays <= 200, "seed {seed}, ahead {ahead}: {strays} for {emitted}");
            assert!(world.is_direct(), "seed {seed}, ahead {ahead}");
            for side in &world.sides {
                assert!(!matches!(side.agent.state(), State::Direct(key) if key.remote == VICTIM));
            }
        }
    }
}

#[test]
fn what_comes_back_to_its_sender_is_not_answered() {
    let (mut world, _) = world(3);
    let own = world.sent.iter().find(|(_, packet)| packet.payload.transport() == Transport::Udp);
    assert!(own.is_none(), "nothing is sent before the peer has offered");
    let bytes = ask(&grant(3), Role::Leader, 1);
    let base = world.base(0);
    let before = world.sent.len();
    world.give(0, Event::Datagram { base, from: VICTIM, bytes });
    assert_eq!(world.sent.len(), before);
    assert_eq!(world.sides[0].agent.counts().dropped, 1);
}

#[test]
fn what_was_recorded_is_of_no_use_later() {
    for seed in 0..20 {
        let mut world = apart(&named("none"), &named("none"), &Settings::default(), seed);
        let stranger = world.network.host(PUBLIC, VICTIM.ip());
        world.weather.loss = 0.0;
        world.gather(&[Transport::Udp]);
        world.run(END);
        let recorded: Vec<Packet> = world.sent.iter().map(|(_, packet)| packet.clone()).collect();
        for packet in recorded {
            let Payload::Datagram(bytes) = packet.payload else { continue };
            world.emit(stranger, datagram(VICTIM, packet.to, bytes), None);
        }
        world.run(2 * END);
        assert_eq!(world.strays.len(), 0, "seed {seed}");
        assert!(world.is_direct(), "seed {seed}");
    }
}

#[test]
fn a_peer_that_names_a_victim_gets_a_few_paced_packets_sent_there() {
    let mut world = apart(&named("none"), &named("none"), &Settings::default(), 4);
    world.network.host(PUBLIC, VICTIM.ip());
    let (base, kind) = (world.base(0), Kind::Host);
    for transport in [Transport::Udp, Transport::Tcp] {
        world.give(0, Event::Local { kind, transport, addr: base, base });
    }
    let settings = Settings::default();
    let candidates = (0..100).map(|n| {
        let transport = if n % 2 == 0 { Transport::Udp } else { Transport::Tcp };
        Candidate::new(Kind::Host, transport, SocketAddr::new(VICTIM.ip(), 40_000 + n), n)
    });
    world.give(0, Event::Told(Message::Offer(candidates.collect())));
    world.run(Duration::from_secs(60));
    let syn_or_probe = |packet: &Packet| {
        matches!(&packet.payload, Payload::Segment(Segment { what: What::Syn, .. }) | Payload::Datagram(_))
    };
    let to_victim: Vec<_> = world.sent.iter().filter(|(_, packet)| packet.to.ip() == VICTIM.ip()).collect();
    assert!(to_victim.iter().all(|(_, packet)| syn_or_probe(packet)));
    let mut tries: Vec<&Packet> = Vec::new();
    for (_, packet) in &to_victim {
        if !tries.contains(&packet) {
            tries.push(packet);
        }
    }
    assert_eq!(tries.len(), settings.tries_per_ip as usize);
    assert!(
        to_victim.len() <= tries.len() * 5 / 4,
        "half are dials, of which few last until their SYN is said once more: {}",
        to_victim.len()
    );
    let mut ports: BTreeMap<u16, u32> = BTreeMap::new();
    tries.iter().for_each(|packet| *ports.entry(packet.to.port()).or_default() += 1);
    assert!(ports.len() <= crate::punch::candidate::MOST && ports.values().all(|&count| count <= settings.tries));
}

#[test]
fn a_stranger_who_connects_is_turned_away() {
    for side in 0..2 {
        let (mut world, stranger) = world(5);
        (world.weather.loss, world.weather.twice) = (0.0, 0.0);
        let to = world.base(side);
        let segment = |what, acknowledges| {
            let payload = Payload::Segment(Segment { what, number: 1, acknowledges });
            Packet { from: VICTIM, to, payload }
        };
        world.emit(stranger, segment(What::Syn, None), None);
        world.run(Duration::from_millis(100));
        let answer = world.strays.iter().find_map(|(_, packet)| match &packet.payload {
            Payload::Segment(Segment { what: What::SynAck, number, .. }) => Some(*number),
            _ => None,
        });
        world.emit(stranger, segment(What::Ack, answer), None);
        world.run(Duration::from_millis(200));
        world.emit(stranger, segment(What::Data(vec![0; 100]), answer), None);
        world.run(END);
        assert!(world.is_direct());
        let came = |what: fn(&What) -> bool| {
            let came = |packet: &Packet| matches!(&packet.payload, Payload::Segment(segment) if what(&segment.what));
            world.strays.iter().filter(|(_, packet)| came(packet)).count()
        };
        assert!(came(|what| matches!(what, What::Data(_))) <= 1 - side, "a leader says one probe, a follower nothing");
        assert!(came(|what| *what == What::Rst) > 0, "side {side}");
    }
}
