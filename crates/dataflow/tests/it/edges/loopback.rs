//! What every machine can try.

use nearpath_rendezvous::Limits;
use nearpath_testkit::p2p::rendezvous::{House, free};

use super::worker_process::{Crew, Hand, Load, begin};

fn all_went(hands: &[Hand], path: &str) {
    for hand in hands {
        let (paths, _) = hand.went().well();
        assert!(!paths.is_empty() && paths.iter().all(|taken| taken == path), "{}: {paths:?}", hand.name);
    }
}

#[test]
fn several_workers_stream_to_several_over_either_transport() {
    let (house, crew) = (House::start(Limits::default()), Crew::new());
    let mut from = ["map.0", "map.1", "map.2"].map(|name| crew.hire(&house, None, name));
    let mut to = ["word_count.0", "word_count.1"].map(|name| crew.hire(&house, None, name));
    for (attempt, over) in [(1, &["tcp"]), (2, &["udp"])] {
        begin(&mut from, &mut to, attempt, &Load { over, path: Some("punch"), ..Load::default() });
        all_went(&from, "punch");
        all_went(&to, "punch");
    }
}

#[test]
fn without_a_direct_way_the_relay_carries_all_and_that_is_told() {
    let (house, crew) = (House::start(Limits::default()), Crew::new());
    let (mut from, mut to) = ([crew.hire(&house, None, "map.0")], [crew.hire(&house, None, "reduce.0")]);
    begin(&mut from, &mut to, 1, &Load { over: &[], ..Load::default() });
    for went in [from[0].went(), to[0].went()] {
        let (paths, relayed) = went.well();
        assert_eq!(paths, ["relay"]);
        assert!((2_000_000..2_200_000).contains(&relayed), "{relayed}");
    }
}

#[test]
fn edges_do_not_notice_that_the_rendezvous_starts_anew() {
    let (addr, crew) = (free(), Crew::new());
    let house = House::start_at(addr, Limits::default());
    let mut from = ["map.0", "map.1"].map(|name| crew.hire(&house, None, name));
    let mut to = ["reduce.0", "reduce.1"].map(|name| crew.hire(&house, None, name));
    begin(&mut from, &mut to, 1, &Load { path: Some("punch"), pause: true, ..Load::default() });
    from.iter().for_each(|hand| assert_eq!(hand.next(), "half"));
    drop(house);
    from.iter_mut().for_each(|hand| hand.say(&"go".into()));
    all_went(&from, "punch");
    all_went(&to, "punch");
    let _house = House::start_at(addr, Limits::default());
    begin(&mut from, &mut to, 2, &Load { path: Some("punch"), ..Load::default() }); // as soon as the lines are there again
    all_went(&from, "punch");
    all_went(&to, "punch");
}

/// The attempt goes on: no stream is begun anew.
#[test]
fn edges_over_the_relay_outlive_the_rendezvous() {
    let (addr, crew) = (free(), Crew::new());
    let house = House::start_at(addr, Limits::default());
    let mut from = ["map.0", "map.1"].map(|name| crew.hire(&house, None, name));
    let mut to = ["reduce.0", "reduce.1"].map(|name| crew.hire(&house, None, name));
    begin(&mut from, &mut to, 1, &Load { over: &[], pause: true, ..Load::default() });
    from.iter().for_each(|hand| assert_eq!(hand.next(), "half"));
    drop(house);
    from.iter_mut().for_each(|hand| hand.say(&"go".into()));
    let house = House::start_at(addr, Limits::default());
    all_went(&from, "relay");
    all_went(&to, "relay");
    assert_eq!(house.metric("nearpath_relay_joined_total"), 4, "they came back to it");
}

#[test]
fn who_begins_later_is_waited_for() {
    let (house, crew) = (House::start(Limits::default()), Crew::new());
    let (mut from, mut to) = (crew.hire(&house, None, "map.0"), crew.hire(&house, None, "reduce.0"));
    let load = Load::default();
    from.begin(1, &[], &[to.name.clone(), "reduce.1".to_owned()], &load);
    to.begin(1, &["map.0".to_owned()], &[], &load);
    let mut late = crew.hire(&house, None, "reduce.1");
    late.begin(1, &["map.0".to_owned()], &[], &load);
    for hand in [from, to, late] {
        hand.went().well();
    }
}
