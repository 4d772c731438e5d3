//! NATs that answer strangers, where the sides begin at different times or are close to each other.

use std::time::Duration;

use crate::punch::agent::{AgentEvent, PunchSettings};
use crate::punch::candidate::{CandidateKind, Transport};

use super::network::PacketDelivery;
use super::sites::{site_named, world_apart};
use super::world::{NetworkConditions, SimWorld};

const RUN_TIME: Duration = Duration::from_secs(14);
const SEEDS: u64 = 100;

/// Two sites with answering NATs, and packets between them that take at least that many
/// milliseconds.
fn answering_world(seed: u64, delay: u64) -> SimWorld {
    let site = site_named("masquerade");
    let mut world = world_apart(&site, &site, &PunchSettings::default(), seed);
    world.conditions = NetworkConditions {
        loss: 0.05,
        duplication: 0.02,
        delay: (delay, 10),
    };
    world
}

/// Delivers a candidate and the request to offer it.
fn add_candidate(world: &mut SimWorld, side: usize, kind: CandidateKind, transport: Transport) {
    let base = world.base(side);
    let host = world.sides[side].host;
    let rendezvous = world.rendezvous;
    let addr = match (kind, world.network.send(host, transport, base, rendezvous)) {
        (CandidateKind::Reflexive, PacketDelivery::Host { from, .. }) => from,
        _ => base,
    };
    let candidate = AgentEvent::LocalCandidate {
        kind,
        transport,
        addr,
        base,
    };
    world.deliver_event(side, candidate);
    world.deliver_event(side, AgentEvent::Gathered);
}

/// Gathers as workers do that a rendezvous has introduced, each at its own distance from it: the
/// grant takes one way, and the observer's answer one or two round trips.
fn gather_from_afar(world: &mut SimWorld, one_way: [u64; 2], transport: Transport) {
    let round_trips = match transport {
        Transport::Udp => 1,
        Transport::Tcp => 2,
    };
    let mut steps: Vec<(u64, usize, CandidateKind)> = (0..2)
        .flat_map(|side| {
            [
                (one_way[side], side, CandidateKind::Host),
                (
                    (1 + 2 * round_trips) * one_way[side],
                    side,
                    CandidateKind::Reflexive,
                ),
            ]
        })
        .collect();
    steps.sort_by_key(|step| step.0);
    for (at, side, kind) in steps {
        let at = Duration::from_millis(at);
        world.run(at);
        world.now = at;
        if kind == CandidateKind::Host {
            let base = world.base(side);
            world.deliver_event(side, AgentEvent::ObserverAsked { transport, base });
        }
        add_candidate(world, side, kind, transport);
    }
}

#[test]
fn sides_at_different_distances_from_the_rendezvous_connect() {
    for one_way in [[5u64, 75], [75, 5], [90, 90], [30, 60]] {
        for transport in [Transport::Udp, Transport::Tcp] {
            let direct = (0..SEEDS).filter(|&seed| {
                let between = one_way[0].abs_diff(one_way[1]).max(5);
                let mut world = answering_world(seed, between);
                let both = one_way[0] + one_way[1];
                world.signal_delay = both..both + 10;
                gather_from_afar(&mut world, one_way, transport);
                world.run(RUN_TIME);
                world.is_direct()
            });
            let direct = direct.count();
            assert!(direct >= 99, "{one_way:?} over {transport:?}: {direct}");
        }
    }
}

/// A single router between two NATs: packets that pass two routers of one side reach the other
/// side's NAT.
#[test]
fn close_sides_connect() {
    for transport in [Transport::Udp, Transport::Tcp] {
        let direct = (0..SEEDS).filter(|&seed| {
            let mut world = answering_world(seed, 1);
            world.network.public_hops = 1;
            world.signal_delay = 5..30;
            world.gather_candidates(&[transport]);
            world.run(RUN_TIME);
            world.is_direct()
        });
        let direct = direct.count();
        assert!(direct >= 99, "{transport:?}: {direct}");
    }
}
