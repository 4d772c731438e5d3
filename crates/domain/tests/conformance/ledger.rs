//! What a domain writes down for whoever asks: counters that outlive it, who holds what, who reaches whom.
use super::node::{DEADLINE, Mode, Node, delivery, function, knows};
use nearpath_domain::hub::{Hub, Ledger, Settings};
use nearpath_domain::registrar::Who;
use nearpath_domain::{Answer, Request, To, clock};
use nearpath_types::InstanceId;
use std::sync::mpsc;

fn calls(node: &Node, times: usize) {
    node.edges(&[("front", "back")]);
    let back = node.serve(2, "back", |_, incoming| match incoming.body.as_ref() {
        b"bad" => Answer { status: 503, ..Answer::default() },
        _ => Answer::ok("done"),
    });
    let mut front = node.caller(1, "front");
    knows(&mut front, "back");
    let mut call = |body: &'static str| {
        let request = Request { body: body.into(), ..Request::default() };
        front.call(To::Function(&function("back")), &request).unwrap().status
    };
    assert!((1..times).all(|_| call("good") == 200) && call("bad") == 503);
    drop(front);
    node.hub.gone(InstanceId(2));
    back.join().unwrap();
    node.until("all have left", |usage| usage.parties == 0 && usage.channels == 0);
}

fn node_with(mode: Mode, ledger: &Ledger) -> Node {
    Node::started(|| Hub::start_with(Settings { delivery: delivery(mode), ..Settings::named("test") }, ledger))
}

pub(crate) fn counters_are_exact_and_outlive_their_channels_and_their_domain(mode: Mode) {
    let ledger = Ledger::default();
    for round in 1..=2 {
        let node = node_with(mode, &ledger);
        calls(&node, 10);
        node.stop();
        let edges = ledger.edges(clock::now());
        let [edge] = &edges[..] else { panic!("{edges:?}") };
        assert_eq!((edge.caller.clone(), edge.callee.clone()), (Some(function("front")), Some(function("back"))));
        for side in [&edge.made, &edge.taken] {
            assert_eq!((side.messages, side.answered, side.failed, side.in_flight), (10 * round, 10 * round, round, 0));
            assert_eq!(side.latency.iter().sum::<u64>(), 10 * round);
            assert!(side.bytes >= 10 * round * 64, "an envelope has 64 bytes");
        }
        assert!(edge.made.micros > 0);
    }
    assert!(!ledger.is_idle(), "it has a past");
    let later = clock::now() + 2 * nearpath_domain::hub::RETENTION;
    assert!(ledger.edges(later).is_empty(), "and forgets its edges");
    assert!(!ledger.is_idle(), "but never how often its functions were called");
}

pub(crate) fn what_a_function_holds_is_counted_against_its_bound(mode: Mode) {
    let ledger = Ledger::default();
    let node = node_with(mode, &ledger);
    node.edges(&[("front", "back")]);
    let ((held, holding), (release, released)) = (mpsc::channel(), mpsc::channel::<()>());
    let back = node.serve(2, "back", move |_, incoming| {
        held.send(incoming.body.len()).unwrap();
        released.recv_timeout(DEADLINE).unwrap();
        Answer::ok("late")
    });
    let mut front = node.caller(1, "front");
    knows(&mut front, "back");
    let caller = std::thread::spawn(move || {
        let request = Request { body: vec![7; 60_000].into(), ..Request::default() };
        front.call(To::Function(&function("back")), &request).unwrap().status
    });
    assert_eq!(holding.recv_timeout(DEADLINE).unwrap(), 60_000);
    let holdings = ledger.holdings().unwrap();
    let back_holds = holdings.holders[&Some(function("back"))];
    assert_eq!(
        (back_holds.parties, back_holds.slots, back_holds.bytes),
        (1, 1, 65_536),
        "the call's slot is the callee's"
    );
    assert_eq!(back_holds.bound, Settings::named("x").bound);
    assert_eq!(holdings.holders[&Some(function("front"))].bytes, 0);
    assert_eq!((holdings.used, holdings.dead, holdings.page, holdings.missed_huge), (65_536, 0, 4096, false));
    let slots: u64 = Settings::named("x").sizes.iter().map(|s| u64::from(s.size) * u64::from(s.count)).sum();
    assert_eq!(holdings.size, slots);
    release.send(()).unwrap();
    assert_eq!(caller.join().unwrap(), 200);
    node.until("all slots are back", |usage| usage.slots == 0);
    assert_eq!(ledger.holdings().unwrap().used, 0);
    node.stop();
    back.join().unwrap();
    assert_eq!(ledger.holdings(), None, "the pool went with its domain");
}

pub(crate) fn the_roll_says_who_reaches_whom(mode: Mode) {
    let ledger = Ledger::default();
    let node = node_with(mode, &ledger);
    node.edges(&[("front", "back")]);
    let back = node.serve(2, "back", |_, _| Answer::ok(""));
    let mut front = node.caller(1, "front");
    knows(&mut front, "back");
    let roll = ledger.roll();
    let by = |name: &str| roll.parties.iter().find(|(_, who)| who.function() == Some(&function(name))).unwrap();
    let ((first, _), (second, who)) = (by("front"), by("back"));
    assert_eq!(who, &Who::Instance(InstanceId(2), function("back")));
    assert_eq!(roll.channels, [(*first, *second)]);
    node.stop();
    back.join().unwrap();
    assert!(ledger.roll().parties.is_empty() && ledger.roll().channels.is_empty());
}
