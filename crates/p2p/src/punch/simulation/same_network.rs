//! Sides that are near each other: in one network, and behind one NAT.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use crate::punch::agent::{Settings, State};
use crate::punch::candidate::Transport;
use crate::punch::nat::{Behaviour, Between, can};

use super::network::{Network, PUBLIC};
use super::router::Router;
use super::sites::{PORT_RESTRICTED, SYMMETRIC};
use super::world::{Place, World};

const END: Duration = Duration::from_secs(14);

fn outer(number: u8) -> Option<IpAddr> {
    Some(IpAddr::from([198, 51, 100, number]))
}

/// Both in the network behind one router.
fn together(behaviour: Behaviour, seed: u64) -> World {
    let mut network = Network::new();
    let realm = network.behind(PUBLIC, Router::new(behaviour, outer(1), seed), outer(1));
    let places = [10, 11].map(|host| Place { realm, ip: IpAddr::V4(Ipv4Addr::new(192, 168, 1, host)) });
    World::new(network, places, &Settings::default(), seed)
}

/// Each in a network of its own, both behind a provider's router.
fn behind_one(provider: Behaviour, seed: u64) -> World {
    let mut network = Network::new();
    let middle = network.behind(PUBLIC, Router::new(provider, outer(1), seed), outer(1));
    let places = [1, 2].map(|number| {
        let own = Some(IpAddr::from([100, 64, 0, number]));
        let router = Router::new(PORT_RESTRICTED, own, seed + u64::from(number));
        Place { realm: network.behind(middle, router, own), ip: IpAddr::V4(Ipv4Addr::new(192, 168, 1, 10)) }
    });
    World::new(network, places, &Settings::default(), seed)
}

#[test]
fn in_one_network_they_talk_there_whatever_the_router() {
    for seed in 0..50 {
        let mut world = together(SYMMETRIC, seed);
        world.gather(&[Transport::Udp]);
        world.run(END);
        assert!(world.is_direct(), "seed {seed}");
        let State::Direct(key) = world.sides[0].agent.state() else { unreachable!() };
        assert_eq!(key.remote, world.base(1), "seed {seed}");
    }
}

#[test]
fn behind_one_nat_it_depends_on_whether_packets_turn_around() {
    for (hairpins, transport) in
        [(false, Transport::Udp), (true, Transport::Udp), (false, Transport::Tcp), (true, Transport::Tcp)]
    {
        let provider = Behaviour { hairpins, ..PORT_RESTRICTED };
        let permitted = can(&provider, &provider, Between::BehindOne, transport);
        let mut good = 0;
        for seed in 0..100 {
            let mut world = behind_one(provider, seed);
            world.gather(&[transport]);
            world.run(END);
            good += u32::from(world.is_direct());
        }
        assert!(if permitted { good >= 99 } else { good == 0 }, "hairpins {hairpins}, {transport:?}: {good}");
    }
}
