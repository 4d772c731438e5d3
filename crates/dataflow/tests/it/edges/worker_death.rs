//! Workers that die, and who are none.

use nearpath_rendezvous::Limits;
use nearpath_testkit::p2p::rendezvous::House;

use super::worker_process::{Crew, Load, begin};

fn a_death_in_mid_stream(over: &'static [&'static str]) {
    let (house, crew) = (House::start(Limits::default()), Crew::new());
    let mut from = ["map.0", "map.1"].map(|name| crew.hire(&house, None, name));
    let mut to = ["reduce.0", "reduce.1"].map(|name| crew.hire(&house, None, name));
    begin(&mut from, &mut to, 1, &Load { over, path: Some("punch"), pause: true, ..Load::default() });
    from.iter().for_each(|hand| assert_eq!(hand.next(), "half"));
    from[0].kill();
    for hand in &to {
        let went = hand.went();
        assert!(went.failure.as_ref().is_some_and(|why| why.contains("map")), "{went:?}");
    }
    from[1].say(&"go".into());
    assert!(from[1].went().failure.is_some());
    from[0] = crew.hire(&house, None, "map.0");
    begin(&mut from, &mut to, 2, &Load { over, ..Load::default() });
    from.iter().chain(&to).for_each(|hand| drop(hand.went().well()));
}

#[test]
fn a_death_in_mid_stream_is_told_and_the_next_attempt_is_made_with_those_who_live() {
    a_death_in_mid_stream(&["tcp"]);
}

/// No kernel says for it that the process is gone.
#[test]
#[ignore = "takes half a minute: make test-nat"]
fn a_death_in_mid_stream_is_told_over_udp_too() {
    a_death_in_mid_stream(&["udp"]);
}

#[test]
fn who_dies_while_it_connects_is_lost() {
    let (house, crew) = (House::start(Limits::default()), Crew::new());
    let (mut from, mut to) = (crew.hire(&house, None, "map.0"), crew.hire(&house, None, "reduce.0"));
    let load = Load { patience: 2.0, ..Load::default() };
    from.begin(1, &[], &["reduce.0".to_owned()], &load);
    to.kill();
    let went = from.went();
    assert!(went.is_lost() && went.failure.unwrap().contains("did not answer"), "a producer waits for an answer");
    let mut to = crew.hire(&house, None, "reduce.0");
    from.kill();
    to.begin(2, &["map.0".to_owned()], &[], &load);
    let went = to.went();
    assert!(went.is_lost() && went.failure.unwrap().contains("did not call"), "a consumer waits for a call");
}

/// A ticket opens the rendezvous; it makes nobody a worker of the job.
#[test]
fn who_has_a_ticket_and_no_identity_of_the_job_is_refused() {
    let (house, crew, other) = (House::start(Limits::default()), Crew::new(), Crew::new());
    let mut load = Load { patience: 3.0, ..Load::default() };
    let (mut from, mut to) = (other.hire(&house, None, "map.0"), crew.hire(&house, None, "reduce.0"));
    from.begin(1, &[], &["reduce.0".to_owned()], &load);
    to.begin(1, &["map.0".to_owned()], &[], &load);
    for went in [from.went(), to.went()] {
        assert!(went.is_lost(), "{went:?}");
        assert_eq!(went.stats["inputs"][0]["bytes"].as_u64().unwrap_or(0), 0);
        assert!(went.failure.as_ref().is_some_and(|why| why.contains("certificate (")), "{went:?}");
    }
    load.patience = 20.0;
    let mut from = crew.hire(&house, None, "map.0");
    from.begin(2, &[], &["reduce.0".to_owned()], &load);
    to.begin(2, &["map.0".to_owned()], &[], &load);
    from.went().well();
    to.went().well();
}
