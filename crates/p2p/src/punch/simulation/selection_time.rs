//! How soon a pair is chosen, by the world's own clock.

use std::net::IpAddr;
use std::time::Duration;

use crate::punch::agent::{AgentState, PunchSettings};
use crate::punch::candidate::Transport;

use super::network::{PUBLIC_REALM, SimNetwork};
use super::sites::{build_site, site_named};
use super::world::{NetworkConditions, SimWorld};

const ROUND_TRIP: Duration = Duration::from_millis(80);

/// Behind two routers, in networks that do not overlap: what one is called at home is nobody in the other one.
fn disjoint_networks(seed: u64) -> SimWorld {
    let (mut network, site) = (SimNetwork::new(), site_named("port_restricted"));
    let mut places =
        [1, 2].map(|number| build_site(&mut network, PUBLIC_REALM, &site, number, seed));
    places[1].ip = IpAddr::from([192, 168, 1, 11]);
    SimWorld::new(network, places, &PunchSettings::default(), seed)
}

/// Addresses within both networks are offered as well, and answer nobody: a pair of reflexive ones that works is not held
/// back by them, whichever transport they are of.
#[test]
fn a_valid_pair_does_not_wait_for_unreachable_addresses() {
    for seed in 0..50 {
        let mut world = disjoint_networks(seed);
        world.conditions = NetworkConditions {
            loss: 0.0,
            duplication: 0.0,
            delay: (40, 0),
        };
        world.gather_candidates(&[Transport::Udp, Transport::Tcp]);
        world.run(Duration::from_secs(14));
        for side in &world.sides {
            let AgentState::Direct(key) = side.agent.state() else {
                panic!("seed {seed}: {:?}", side.agent.state())
            };
            assert_eq!(key.transport, Transport::Tcp, "seed {seed}");
            // An offer takes half of one at most, first dials are paced; then the connection opens, an ask is answered, and a
            // nomination. Without this rule it takes seven.
            assert!(
                side.settled_at
                    .is_some_and(|after| after < ROUND_TRIP * 9 / 2),
                "seed {seed}: {:?}",
                side.settled_at
            );
        }
    }
}
