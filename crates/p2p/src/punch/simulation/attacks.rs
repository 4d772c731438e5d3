//! Attackers outside the session, which guess, replay and forge; and a peer that offers a victim's
//! address.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use crate::punch::agent::{AgentEvent, AgentState, PunchMessage, PunchSettings};
use crate::punch::candidate::{Candidate, CandidateKind, Transport};
use crate::punch::probe::Probe;
use crate::punch::session::{PunchGrant, PunchSession, SessionRole};

use super::network::PUBLIC_REALM;
use super::sites::{site_named, world_apart};
use super::tcp::{SegmentKind, TcpSegment};
use super::world::{PacketPayload, SimPacket, SimWorld, session_grant, side_identity};

const RUN_TIME: Duration = Duration::from_secs(14);
const VICTIM_ADDR: SocketAddr =
    SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 99)), 40_000);

/// Creates two sides on the public network, reachable for everyone, and a third host.
fn public_world(seed: u64) -> (SimWorld, usize) {
    let mut world = world_apart(
        &site_named("none"),
        &site_named("none"),
        &PunchSettings::default(),
        seed,
    );
    let attacker = world.network.add_host(PUBLIC_REALM, VICTIM_ADDR.ip());
    world.gather_candidates(&[Transport::Udp, Transport::Tcp]);
    (world, attacker)
}

fn datagram_packet(from: SocketAddr, to: SocketAddr, bytes: Vec<u8>) -> SimPacket {
    SimPacket {
        from,
        to,
        payload: PacketPayload::Datagram(bytes),
    }
}

fn request_bytes(grant: &PunchGrant, from: SessionRole, number: u64) -> Vec<u8> {
    let (me, peer) = if from == SessionRole::Leader {
        (0, 1)
    } else {
        (1, 0)
    };
    let session = PunchSession::new(
        grant,
        &side_identity(me),
        &side_identity(peer),
        Instant::now(),
    )
    .unwrap();
    let probe = Probe {
        sender: from,
        nonce: 1,
        request: Some(number),
        response: None,
        nomination: Some(1),
        mapped_addr: None,
    };
    probe.encode(&session).to_vec()
}

/// Counts the responses to an attacker with this grant that queries both sides before they exchange
/// probes.
fn count_responses(grant: &PunchGrant, seed: u64) -> usize {
    let (mut world, attacker) = public_world(seed);
    world.conditions.loss = 0.0;
    for (side, from) in [(0, SessionRole::Follower), (1, SessionRole::Leader)] {
        let to = world.base(side);
        (1..50).for_each(|number| {
            world.emit(
                attacker,
                datagram_packet(VICTIM_ADDR, to, request_bytes(grant, from, number)),
                None,
            )
        });
        world.emit(
            attacker,
            datagram_packet(VICTIM_ADDR, to, vec![0x0e; 100]),
            None,
        );
        world.emit(attacker, datagram_packet(VICTIM_ADDR, to, Vec::new()), None);
    }
    world.run(RUN_TIME);
    assert!(world.is_direct(), "seed {seed}");
    world.stray_packets.len()
}

#[test]
fn a_guessed_key_gets_no_response() {
    for seed in 0..20 {
        let guess = PunchGrant {
            secret: [8; 32],
            ..session_grant(seed)
        };
        assert_eq!(count_responses(&guess, seed), 0, "seed {seed}");
        let other_end = PunchGrant {
            expires: 1_800_000_001,
            ..session_grant(seed)
        };
        assert_eq!(count_responses(&other_end, seed), 0, "seed {seed}");
    }
}

#[test]
fn the_right_key_gets_a_response() {
    let (mut world, attacker) = public_world(1);
    world.conditions.loss = 0.0;
    let to = world.base(1);
    world.emit(
        attacker,
        datagram_packet(
            VICTIM_ADDR,
            to,
            request_bytes(&session_grant(1), SessionRole::Leader, 1),
        ),
        None,
    );
    world.run(RUN_TIME);
    assert!(!world.stray_packets.is_empty());
}

/// Replays every datagram at once and later, from the victim's address and back to its sender.
///
/// `ahead`: the copy arrives, not the original.
fn replay_datagrams(seed: u64, ahead: bool) -> (SimWorld, usize) {
    let (mut world, attacker) = public_world(seed);
    let (mut copied, mut emitted) = (0, 0);
    while world.step(RUN_TIME) {
        let new: Vec<SimPacket> = world.sent[copied..]
            .iter()
            .map(|(_, packet)| packet.clone())
            .collect();
        for packet in new {
            let PacketPayload::Datagram(bytes) = packet.payload else {
                continue;
            };
            let weather = world.conditions;
            if ahead {
                (world.conditions.loss, world.conditions.delay) = (0.0, (0, 0));
            }
            let forged = [
                datagram_packet(VICTIM_ADDR, packet.to, bytes.clone()),
                datagram_packet(packet.to, packet.from, bytes),
            ];
            for packet in forged {
                world.emit(attacker, packet, None);
                emitted += 1;
            }
            world.conditions = weather;
        }
        copied = world.sent.len();
    }
    (world, emitted)
}

#[test]
fn replays_do_not_take_over_or_amplify() {
    for seed in 0..20 {
        for ahead in [false, true] {
            let (mut world, emitted) = replay_datagrams(seed, ahead);
            let strays = world.stray_packets.len();
            assert!(
                strays <= emitted && strays <= 200,
                "seed {seed}, ahead {ahead}: {strays} for {emitted}"
            );
            assert!(world.is_direct(), "seed {seed}, ahead {ahead}");
            for side in &world.sides {
                assert!(
                    !matches!(side.agent.state(), AgentState::Direct(key) if key.remote == VICTIM_ADDR)
                );
            }
        }
    }
}

#[test]
fn a_reflected_probe_gets_no_response() {
    let (mut world, _) = public_world(3);
    let own = world
        .sent
        .iter()
        .find(|(_, packet)| packet.payload.transport() == Transport::Udp);
    assert!(own.is_none(), "nothing is sent before the peer has offered");
    let bytes = request_bytes(&session_grant(3), SessionRole::Leader, 1);
    let base = world.base(0);
    let before = world.sent.len();
    world.deliver_event(
        0,
        AgentEvent::Datagram {
            base,
            from: VICTIM_ADDR,
            bytes,
        },
    );
    assert_eq!(world.sent.len(), before);
    assert_eq!(world.sides[0].agent.counts().dropped, 1);
}

#[test]
fn recorded_probes_are_useless_later() {
    for seed in 0..20 {
        let mut world = world_apart(
            &site_named("none"),
            &site_named("none"),
            &PunchSettings::default(),
            seed,
        );
        let attacker = world.network.add_host(PUBLIC_REALM, VICTIM_ADDR.ip());
        world.conditions.loss = 0.0;
        world.gather_candidates(&[Transport::Udp]);
        world.run(RUN_TIME);
        let recorded: Vec<SimPacket> = world
            .sent
            .iter()
            .map(|(_, packet)| packet.clone())
            .collect();
        for packet in recorded {
            let PacketPayload::Datagram(bytes) = packet.payload else {
                continue;
            };
            world.emit(
                attacker,
                datagram_packet(VICTIM_ADDR, packet.to, bytes),
                None,
            );
        }
        world.run(2 * RUN_TIME);
        assert_eq!(world.stray_packets.len(), 0, "seed {seed}");
        assert!(world.is_direct(), "seed {seed}");
    }
}

/// Offers a hundred ports of the victim.
fn offer_of_victim() -> PunchMessage {
    let candidates = (0..100).map(|n| {
        let transport = if n % 2 == 0 {
            Transport::Udp
        } else {
            Transport::Tcp
        };
        Candidate::new(
            CandidateKind::Host,
            transport,
            SocketAddr::new(VICTIM_ADDR.ip(), 40_000 + n),
            n,
        )
    });
    PunchMessage::Offer(candidates.collect())
}

fn is_syn_or_probe(packet: &SimPacket) -> bool {
    matches!(
        &packet.payload,
        PacketPayload::Segment(TcpSegment {
            kind: SegmentKind::Syn,
            ..
        }) | PacketPayload::Datagram(_)
    )
}

#[test]
fn an_offered_victim_gets_few_paced_packets() {
    let mut world = world_apart(
        &site_named("none"),
        &site_named("none"),
        &PunchSettings::default(),
        4,
    );
    world.network.add_host(PUBLIC_REALM, VICTIM_ADDR.ip());
    let (base, kind) = (world.base(0), CandidateKind::Host);
    for transport in [Transport::Udp, Transport::Tcp] {
        world.deliver_event(
            0,
            AgentEvent::LocalCandidate {
                kind,
                transport,
                addr: base,
                base,
            },
        );
    }
    let settings = PunchSettings::default();
    world.deliver_event(0, AgentEvent::PeerMessage(offer_of_victim()));
    world.run(Duration::from_secs(60));
    let to_victim: Vec<_> = world
        .sent
        .iter()
        .filter(|(_, packet)| packet.to.ip() == VICTIM_ADDR.ip())
        .collect();
    assert!(to_victim.iter().all(|(_, packet)| is_syn_or_probe(packet)));
    let mut tries: Vec<&SimPacket> = Vec::new();
    for (_, packet) in &to_victim {
        if !tries.contains(&packet) {
            tries.push(packet);
        }
    }
    let counted = world.sides[0].agent.counts().tries;
    assert_eq!(counted, settings.max_tries_per_ip);
    assert!(
        to_victim.len() <= counted as usize * 5 / 4,
        "half are dials, of which few last until their SYN is repeated: {}",
        to_victim.len()
    );
    let mut ports: BTreeMap<u16, u32> = BTreeMap::new();
    tries
        .iter()
        .for_each(|packet| *ports.entry(packet.to.port()).or_default() += 1);
    assert!(
        ports.len() <= crate::punch::candidate::MAX_CANDIDATES
            && ports.values().all(|&count| count <= settings.max_tries)
    );
}

#[test]
fn an_unproven_tcp_connection_is_reset() {
    for side in 0..2 {
        let (mut world, attacker) = public_world(5);
        (world.conditions.loss, world.conditions.duplication) = (0.0, 0.0);
        let to = world.base(side);
        let segment = |what, acknowledges| {
            let payload = PacketPayload::Segment(TcpSegment {
                kind: what,
                number: 1,
                acknowledges,
            });
            SimPacket {
                from: VICTIM_ADDR,
                to,
                payload,
            }
        };
        world.emit(attacker, segment(SegmentKind::Syn, None), None);
        world.run(Duration::from_millis(100));
        let answer = world
            .stray_packets
            .iter()
            .find_map(|(_, packet)| match &packet.payload {
                PacketPayload::Segment(TcpSegment {
                    kind: SegmentKind::SynAck,
                    number,
                    ..
                }) => Some(*number),
                _ => None,
            });
        world.emit(attacker, segment(SegmentKind::Ack, answer), None);
        world.run(Duration::from_millis(200));
        world.emit(
            attacker,
            segment(SegmentKind::Data(vec![0; 100]), answer),
            None,
        );
        world.run(RUN_TIME);
        assert!(world.is_direct());
        let received = |what: fn(&SegmentKind) -> bool| {
            let received = |packet: &SimPacket| matches!(&packet.payload, PacketPayload::Segment(segment) if what(&segment.kind));
            world
                .stray_packets
                .iter()
                .filter(|(_, packet)| received(packet))
                .count()
        };
        assert!(
            received(|what| matches!(what, SegmentKind::Data(_))) <= 1 - side,
            "a leader says one probe, a follower nothing"
        );
        assert!(
            received(|what| *what == SegmentKind::Rst) > 0,
            "side {side}"
        );
    }
}
