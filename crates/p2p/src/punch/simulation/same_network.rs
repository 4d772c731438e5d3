//! Workers near each other: in one network, and behind one NAT.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use crate::punch::agent::{AgentState, PunchSettings};
use crate::punch::candidate::Transport;
use crate::punch::nat::{NatBehaviour, NatRelation, can_connect};

use super::network::{PUBLIC_REALM, SimNetwork};
use super::router::SimRouter;
use super::sites::{PORT_RESTRICTED, SYMMETRIC};
use super::world::{SimPlacement, SimWorld};

const RUN_TIME: Duration = Duration::from_secs(14);

fn outer_ip(number: u8) -> Option<IpAddr> {
    Some(IpAddr::from([198, 51, 100, number]))
}

/// Both workers in the network behind one router.
fn same_network_world(behaviour: NatBehaviour, seed: u64) -> SimWorld {
    let mut network = SimNetwork::new();
    let realm = network.add_realm(
        PUBLIC_REALM,
        SimRouter::new(behaviour, outer_ip(1), seed),
        outer_ip(1),
    );
    let places = [10, 11].map(|host| SimPlacement {
        realm,
        ip: IpAddr::V4(Ipv4Addr::new(192, 168, 1, host)),
    });
    SimWorld::new(network, places, &PunchSettings::default(), seed)
}

/// Each worker in its own network, both behind a provider's router.
fn same_nat_world(provider: NatBehaviour, seed: u64) -> SimWorld {
    let mut network = SimNetwork::new();
    let middle = network.add_realm(
        PUBLIC_REALM,
        SimRouter::new(provider, outer_ip(1), seed),
        outer_ip(1),
    );
    let places = [1, 2].map(|number| {
        let own = Some(IpAddr::from([100, 64, 0, number]));
        let router = SimRouter::new(PORT_RESTRICTED, own, seed + u64::from(number));
        SimPlacement {
            realm: network.add_realm(middle, router, own),
            ip: IpAddr::V4(Ipv4Addr::new(192, 168, 1, 10)),
        }
    });
    SimWorld::new(network, places, &PunchSettings::default(), seed)
}

#[test]
fn workers_in_one_network_connect_inside_it() {
    for seed in 0..50 {
        let mut world = same_network_world(SYMMETRIC, seed);
        world.gather_candidates(&[Transport::Udp]);
        world.run(RUN_TIME);
        assert!(world.is_direct(), "seed {seed}");
        let AgentState::Direct(key) = world.sides[0].agent.state() else {
            unreachable!()
        };
        assert_eq!(key.remote, world.base(1), "seed {seed}");
    }
}

#[test]
fn workers_behind_one_nat_connect_if_it_hairpins() {
    for (hairpins, transport) in [
        (false, Transport::Udp),
        (true, Transport::Udp),
        (false, Transport::Tcp),
        (true, Transport::Tcp),
    ] {
        let provider = NatBehaviour {
            hairpins,
            ..PORT_RESTRICTED
        };
        let permitted = can_connect(&provider, &provider, NatRelation::SameNat, transport);
        let mut good = 0;
        for seed in 0..100 {
            let mut world = same_nat_world(provider, seed);
            world.gather_candidates(&[transport]);
            world.run(RUN_TIME);
            good += u32::from(world.is_direct());
        }
        assert!(
            if permitted { good >= 99 } else { good == 0 },
            "hairpins {hairpins}, {transport:?}: {good}"
        );
    }
}
