//! Every kind of NAT against every kind.

use std::time::Duration;

use crate::punch::agent::{AgentState, OPENING_PERIOD, PunchSettings};
use crate::punch::candidate::Transport;

use super::sites::{all, is_permitted, site_named, world_apart};
use super::world::NetworkConditions;

const RUN_TIME: Duration = Duration::from_secs(14);
const SEEDS: u64 = 100;

fn seeds() -> Vec<u64> {
    match std::env::var("NEARPATH_SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => (0..SEEDS).collect(),
    }
}

/// Counts the seeds with a direct connection. With each seed both sides must end with the same
/// result.
fn count_direct(a: &str, b: &str, transports: &[Transport], relay: bool) -> (u64, Vec<u64>) {
    let settings = PunchSettings {
        allow_relay: relay,
        ..PunchSettings::default()
    };
    let (mut good, mut bad) = (0, Vec::new());
    for seed in seeds() {
        let mut world = world_apart(&site_named(a), &site_named(b), &settings, seed);
        world.gather_candidates(transports);
        world.run(RUN_TIME);
        for side in &world.sides {
            assert_ne!(
                side.agent.state(),
                AgentState::Searching,
                "{a} with {b}, seed {seed}: it hangs"
            );
        }
        if world.is_direct() {
            good += 1
        } else {
            bad.push(seed)
        }
    }
    (good, bad)
}

fn row(a: &str, transports: &[Transport]) {
    for (b, site) in all() {
        let (good, bad) = count_direct(a, b, transports, true);
        let permitted = is_permitted(&site_named(a), &site, transports);
        let want = if permitted {
            good * 100 >= 99 * (good + bad.len() as u64)
        } else {
            good == 0
        };
        assert!(
            want,
            "{a} with {b} over {transports:?}: {good} direct, theory permits: {permitted}, relayed with seeds {bad:?}"
        );
    }
}

macro_rules! rows {
    ($($kind:ident)*) => {
        mod udp { $(#[test] fn $kind() { super::row(stringify!($kind), &[crate::punch::Transport::Udp]); })* }
        mod tcp { $(#[test] fn $kind() { super::row(stringify!($kind), &[crate::punch::Transport::Tcp]); })* }
        mod both { $(#[test] fn $kind() {
            super::row(stringify!($kind), &[crate::punch::Transport::Udp, crate::punch::Transport::Tcp]);
        })* }
        #[test]
        fn no_kind_is_left_out() {
            assert!(all().iter().map(|(name, _)| *name).eq([$(stringify!($kind)),*]));
        }
    };
}

rows! {
    none firewall full_cone restricted port_restricted preserving refusing masquerade double_masquerade symmetric
    address_dependent double double_symmetric udp_blocked six
}

#[test]
fn a_side_that_never_probes_is_noticed() {
    let settings = PunchSettings {
        max_tries: 0,
        ..PunchSettings::default()
    };
    let mut world = world_apart(
        &site_named("port_restricted"),
        &site_named("port_restricted"),
        &settings,
        1,
    );
    world.gather_candidates(&[Transport::Udp, Transport::Tcp]);
    world.run(RUN_TIME);
    assert!(
        !world.is_direct(),
        "the rows of the matrix would hold whatever the agents do"
    );
}

#[test]
fn without_a_relay_both_sides_fail() {
    let settings = PunchSettings {
        allow_relay: false,
        ..PunchSettings::default()
    };
    let mut world = world_apart(
        &site_named("symmetric"),
        &site_named("symmetric"),
        &settings,
        1,
    );
    world.gather_candidates(&[Transport::Udp]);
    world.run(RUN_TIME);
    assert!(!world.is_direct());
    assert!(
        world
            .sides
            .iter()
            .all(|side| matches!(side.agent.state(), AgentState::Ended(_))
                && side.chosen_paths.is_empty())
    );
}

#[test]
fn the_relay_carries_bytes_from_the_first_moment() {
    let mut world = world_apart(
        &site_named("port_restricted"),
        &site_named("port_restricted"),
        &PunchSettings::default(),
        1,
    );
    world.gather_candidates(&[Transport::Udp]);
    assert!(world.sides.iter().all(|side| side.chosen_paths == [None]));
    world.run(RUN_TIME);
    assert!(world.is_direct());
    assert!(
        world
            .sides
            .iter()
            .all(|side| side.chosen_paths.len() == 2 && side.chosen_paths[1].is_some())
    );
}

#[test]
fn a_silent_pair_falls_back_to_the_relay() {
    let mut world = world_apart(
        &site_named("restricted"),
        &site_named("port_restricted"),
        &PunchSettings::default(),
        3,
    );
    world.gather_candidates(&[Transport::Udp]);
    world.run(RUN_TIME);
    assert!(world.is_direct());
    world.run(Duration::from_secs(120));
    assert!(world.is_direct(), "probes keep it alive");
    world.conditions.loss = 1.0;
    world.run(Duration::from_secs(180));
    assert!(!world.is_direct());
    assert!(
        world
            .sides
            .iter()
            .all(|side| side.chosen_paths.len() == 3 && side.chosen_paths[2].is_none())
    );
}

#[test]
fn an_ended_connection_falls_back_to_the_relay() {
    let mut world = world_apart(
        &site_named("restricted"),
        &site_named("port_restricted"),
        &PunchSettings::default(),
        3,
    );
    world.gather_candidates(&[Transport::Tcp]);
    world.run(RUN_TIME);
    let AgentState::Direct(key) = world.sides[0].agent.state() else {
        panic!("no connection")
    };
    world.deliver_event(0, crate::punch::AgentEvent::Disconnected(key));
    world.run(2 * RUN_TIME);
    assert!(!world.is_direct());
}

#[test]
fn the_preferred_transport_is_chosen_where_both_work() {
    for prefer in [Transport::Udp, Transport::Tcp] {
        let settings = PunchSettings {
            preferred_transport: prefer,
            ..PunchSettings::default()
        };
        let mut good = 0;
        for seed in 0..SEEDS {
            let mut world = world_apart(
                &site_named("full_cone"),
                &site_named("port_restricted"),
                &settings,
                seed,
            );
            world.conditions = NetworkConditions {
                loss: 0.0,
                ..NetworkConditions::LOSSY
            };
            world.gather_candidates(&[Transport::Udp, Transport::Tcp]);
            world.run(RUN_TIME);
            let is_it = |state| matches!(state, AgentState::Direct(key) if key.transport == prefer);
            good += u64::from(world.is_direct() && is_it(world.sides[0].agent.state()));
        }
        assert!(good >= 90, "{prefer:?}: {good}");
    }
}

#[test]
fn two_round_trips_after_both_offers_and_openings_the_follower_has_the_pair() {
    const ONE_WAY: u64 = 20;
    for seed in 0..SEEDS {
        let mut world = world_apart(
            &site_named("port_restricted"),
            &site_named("port_restricted"),
            &PunchSettings::default(),
            seed,
        );
        world.conditions = NetworkConditions {
            loss: 0.0,
            duplication: 0.0,
            delay: (ONE_WAY, 0),
        };
        world.gather_candidates(&[Transport::Udp]);
        world.run(RUN_TIME);
        assert!(world.is_direct());
        let settled = [0, 1].map(|side| world.sides[side].settled_at.unwrap());
        let offers = Duration::from_millis(40); // the rendezvous' maximum delay
        let (round_trip, pacing) = (
            Duration::from_millis(2 * ONE_WAY),
            PunchSettings::default().pace_interval * 2,
        );
        let begins = offers + OPENING_PERIOD;
        assert!(
            settled[1] <= begins + 2 * round_trip + pacing,
            "seed {seed}: {settled:?}"
        );
        assert!(
            settled[0] <= begins + 5 * round_trip / 2 + pacing,
            "seed {seed}: {settled:?}"
        );
    }
}

#[test]
fn distant_sides_connect_as_well() {
    for (b, transport) in [
        ("port_restricted", Transport::Udp),
        ("refusing", Transport::Tcp),
    ] {
        let mut good = 0;
        for seed in 0..SEEDS {
            let mut world = world_apart(
                &site_named("port_restricted"),
                &site_named(b),
                &PunchSettings::default(),
                seed,
            );
            world.conditions = NetworkConditions {
                delay: (200, 60),
                ..NetworkConditions::LOSSY
            };
            world.gather_candidates(&[transport]);
            world.run(RUN_TIME);
            good += u64::from(world.is_direct());
        }
        assert!(good >= 99, "{transport:?}: {good}");
    }
}
