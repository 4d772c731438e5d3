//! Every kind against every kind.

use std::time::Duration;

use crate::punch::agent::{Settings, State};
use crate::punch::candidate::Transport;

use super::sites::{all, apart, named, permitted};
use super::world::Weather;

const END: Duration = Duration::from_secs(14);
const SEEDS: u64 = 100;

fn seeds() -> Vec<u64> {
    match std::env::var("NEARPATH_SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => (0..SEEDS).collect(),
    }
}

/// Of all seeds: those with which the two got a direct way. Both come to an end with every seed, and to the same.
fn direct(a: &str, b: &str, transports: &[Transport], relay: bool) -> (u64, Vec<u64>) {
    let settings = Settings { relay, ..Settings::default() };
    let (mut good, mut bad) = (0, Vec::new());
    for seed in seeds() {
        let mut world = apart(&named(a), &named(b), &settings, seed);
        world.gather(transports);
        world.run(END);
        for side in &world.sides {
            assert_ne!(side.agent.state(), State::Looking, "{a} with {b}, seed {seed}: it hangs");
        }
        if world.is_direct() { good += 1 } else { bad.push(seed) }
    }
    (good, bad)
}

fn row(a: &str, transports: &[Transport]) {
    for (b, site) in all() {
        let (good, bad) = direct(a, b, transports, true);
        let permitted = permitted(&named(a), &site, transports);
        let want = if permitted { good * 100 >= 99 * (good + bad.len() as u64) } else { good == 0 };
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
    none firewall full_cone restricted port_restricted preserving refusing symmetric
    address_dependent double double_symmetric udp_blocked six
}

#[test]
fn a_side_that_never_probes_is_noticed() {
    let settings = Settings { tries: 0, ..Settings::default() };
    let mut world = apart(&named("port_restricted"), &named("port_restricted"), &settings, 1);
    world.gather(&[Transport::Udp, Transport::Tcp]);
    world.run(END);
    assert!(!world.is_direct(), "the rows of the matrix would hold whatever the agents do");
}

#[test]
fn without_a_relay_both_are_told_that_there_is_no_way() {
    let settings = Settings { relay: false, ..Settings::default() };
    let mut world = apart(&named("symmetric"), &named("symmetric"), &settings, 1);
    world.gather(&[Transport::Udp]);
    world.run(END);
    assert!(!world.is_direct());
    assert!(world.sides.iter().all(|side| matches!(side.agent.state(), State::Ended(_)) && side.used.is_empty()));
}

#[test]
fn the_relay_carries_bytes_from_the_first_moment() {
    let mut world = apart(&named("port_restricted"), &named("port_restricted"), &Settings::default(), 1);
    world.gather(&[Transport::Udp]);
    assert!(world.sides.iter().all(|side| side.used == [None]));
    world.run(END);
    assert!(world.is_direct());
    assert!(world.sides.iter().all(|side| side.used.len() == 2 && side.used[1].is_some()));
}

#[test]
fn a_pair_that_falls_silent_is_given_up_for_the_relay() {
    let mut world = apart(&named("restricted"), &named("port_restricted"), &Settings::default(), 3);
    world.gather(&[Transport::Udp]);
    world.run(END);
    assert!(world.is_direct());
    world.run(Duration::from_secs(120));
    assert!(world.is_direct(), "probes keep it alive");
    world.weather.loss = 1.0;
    world.run(Duration::from_secs(180));
    assert!(!world.is_direct());
    assert!(world.sides.iter().all(|side| side.used.len() == 3 && side.used[2].is_none()));
}

#[test]
fn a_connection_that_ends_is_given_up_for_the_relay() {
    let mut world = apart(&named("restricted"), &named("port_restricted"), &Settings::default(), 3);
    world.gather(&[Transport::Tcp]);
    world.run(END);
    let State::Direct(key) = world.sides[0].agent.state() else { panic!("no connection") };
    world.give(0, crate::punch::Event::Ended(key));
    world.run(2 * END);
    assert!(!world.is_direct());
}

#[test]
fn the_wanted_transport_is_taken_where_both_work() {
    for prefer in [Transport::Udp, Transport::Tcp] {
        let settings = Settings { prefer, ..Settings::default() };
        let mut good = 0;
        for seed in 0..SEEDS {
            let mut world = apart(&named("full_cone"), &named("port_restricted"), &settings, seed);
            world.weather = Weather { loss: 0.0, ..Weather::BAD };
            world.gather(&[Transport::Udp, Transport::Tcp]);
            world.run(END);
            let is_it = |state| matches!(state, State::Direct(key) if key.transport == prefer);
            good += u64::from(world.is_direct() && is_it(world.sides[0].agent.state()));
        }
        assert!(good >= 90, "{prefer:?}: {good}");
    }
}

#[test]
fn two_round_trips_after_both_offers_the_follower_has_the_pair() {
    const ONE_WAY: u64 = 20;
    for seed in 0..SEEDS {
        let mut world = apart(&named("port_restricted"), &named("port_restricted"), &Settings::default(), seed);
        world.weather = Weather { loss: 0.0, twice: 0.0, delay: (ONE_WAY, 0) };
        world.gather(&[Transport::Udp]);
        world.run(END);
        assert!(world.is_direct());
        let settled = [0, 1].map(|side| world.sides[side].settled.unwrap());
        let offers = Duration::from_millis(40); // the longest that the rendezvous takes
        let (round_trip, pacing) = (Duration::from_millis(2 * ONE_WAY), Settings::default().pace * 2);
        assert!(settled[1] <= offers + 2 * round_trip + pacing, "seed {seed}: {settled:?}");
        assert!(settled[0] <= offers + 5 * round_trip / 2 + pacing, "seed {seed}: {settled:?}");
    }
}

#[test]
fn sides_that_are_far_apart_meet_as_well() {
    for (b, transport) in [("port_restricted", Transport::Udp), ("refusing", Transport::Tcp)] {
        let mut good = 0;
        for seed in 0..SEEDS {
            let mut world = apart(&named("port_restricted"), &named(b), &Settings::default(), seed);
            world.weather = Weather { delay: (200, 60), ..Weather::BAD };
            world.gather(&[transport]);
            world.run(END);
            good += u64::from(world.is_direct());
        }
        assert!(good >= 99, "{transport:?}: {good}");
    }
}
