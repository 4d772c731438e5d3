//! Time until a pair is chosen, by the simulation's clock.

use std::net::IpAddr;
use std::time::Duration;

use crate::punch::agent::{AgentState, PunchSettings};
use crate::punch::candidate::Transport;

use super::network::{PUBLIC_REALM, SimNetwork};
use super::sites::{build_site, site_named};
use super::world::{NetworkConditions, SimWorld};

const ROUND_TRIP: Duration = Duration::from_millis(80);

/// Two routers with disjoint networks: an inner address of one does not exist in the other.
fn disjoint_networks(seed: u64) -> SimWorld {
    let (mut network, site) = (SimNetwork::new(), site_named("port_restricted"));
    let mut places =
        [1, 2].map(|number| build_site(&mut network, PUBLIC_REALM, &site, number, seed));
    places[1].ip = IpAddr::from([192, 168, 1, 11]);
    SimWorld::new(network, places, &PunchSettings::default(), seed)
}

/// Inner addresses are offered as well and never respond: a valid pair of reflexive addresses does
/// not wait for them, over either transport.
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
            // Round trips: half of one for the offer, one for the connection, one for the request
            // and one for the nomination, besides pacing. Waiting for unreachable addresses would
            // take seven.
            assert!(
                side.settled_at
                    .is_some_and(|after| after < ROUND_TRIP * 9 / 2),
                "seed {seed}: {:?}",
                side.settled_at
            );
        }
    }
}
