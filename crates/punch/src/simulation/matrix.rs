//! Every kind against every kind.

use std::time::Duration;

use crate::agent::{Settings, State};
use crate::candidate::Transport;

use super::kinds::{all, apart, named, permitted};

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
        mod udp { $(#[test] fn $kind() { super::row(stringify!($kind), &[crate::Transport::Udp]); })* }
        mod tcp { $(#[test] fn $kind() { super::row(stringify!($kind), &[crate::Transport::Tcp]); })* }
        mod both { $(#[test] fn $kind() {
            super::row(stringify!($kind), &[crate::Transport::Udp, crate::Transport::Tcp]);
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
#[ignore]
fn trace() {
    let var = |name: &str| std::env::var(name).unwrap();
    let transport = if var("T") == "udp" { Transport::Udp } else { Transport::Tcp };
    let mut world = apart(&named(&var("A")), &named(&var("B")), &Settings::default(), seeds()[0]);
    world.gather(&[transport]);
    let mut n = 0;
    while world.step(END) {
        for (host, packet) in &world.sent[n..] {
            let text = match &packet.payload {
                super::world::Payload::Datagram(b) => {
                    format!("flags {:05b} gen {} ask {} ans {}", b[5], b[6], b[32], b[40])
                }
                super::world::Payload::Segment(super::tcp::Segment::Data(b)) => {
                    format!("DATA flags {:05b} gen {} ask {} ans {}", b[5], b[6], b[32], b[40])
                }
                super::world::Payload::Segment(s) => format!("{s:?}"),
            };
            println!("{:?} h{host} {} -> {} {text}", world.now, packet.from, packet.to);
        }
        n = world.sent.len();
    }
    for s in &world.sides {
        println!("{:?} {:?}", s.agent.state(), s.agent.counts());
    }
}
