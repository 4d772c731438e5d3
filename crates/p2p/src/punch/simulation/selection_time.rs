//! How soon a pair is chosen, by the world's own clock.

use std::net::IpAddr;
use std::time::Duration;

use crate::punch::agent::{Settings, State};
use crate::punch::candidate::Transport;

use super::network::{Network, PUBLIC};
use super::sites::{named, place};
use super::world::{Weather, World};

const ROUND_TRIP: Duration = Duration::from_millis(80);

/// Behind two routers, in networks that do not overlap: what one is called at home is nobody in the other one.
fn with_other_addresses(seed: u64) -> World {
    let (mut network, site) = (Network::new(), named("port_restricted"));
    let mut places = [1, 2].map(|number| place(&mut network, PUBLIC, &site, number, seed));
    places[1].ip = IpAddr::from([192, 168, 1, 11]);
    World::new(network, places, &Settings::default(), seed)
}

/// Addresses within both networks are offered as well, and answer nobody: a pair of reflexive ones that works is not held
/// back by them, whichever transport they are of.
#[test]
fn a_pair_that_works_does_not_wait_for_addresses_that_answer_nobody() {
    for seed in 0..50 {
        let mut world = with_other_addresses(seed);
        world.weather = Weather { loss: 0.0, twice: 0.0, delay: (40, 0) };
        world.gather(&[Transport::Udp, Transport::Tcp]);
        world.run(Duration::from_secs(14));
        for side in &world.sides {
            let State::Direct(key) = side.agent.state() else { panic!("seed {seed}: {:?}", side.agent.state()) };
            assert_eq!(key.transport, Transport::Tcp, "seed {seed}");
            // An offer takes half of one at most, first dials are paced; then the connection opens, an ask is answered, and a
            // nomination. Without this rule it takes seven.
            assert!(side.settled.is_some_and(|after| after < ROUND_TRIP * 9 / 2), "seed {seed}: {:?}", side.settled);
        }
    }
}
