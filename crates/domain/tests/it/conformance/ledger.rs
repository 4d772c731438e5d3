//! Statistics of a domain: counters that outlive it, slots by holder, and its membership.
use super::node::{DeliveryMode, TEST_TIMEOUT, TestNode, delivery, function, knows};
use nearpath_domain::node_side::{DomainHandle, DomainSettings, SharedStats};
use nearpath_domain::topology::EndpointOwner;
use nearpath_domain::{CallDestination, CallRequest, CallResponse, clock};
use nearpath_types::InstanceId;
use std::sync::mpsc;

fn calls(node: &TestNode, times: usize) {
    node.edges(&[("front", "back")]);
    let back = node.serve(2, "back", |_, incoming| match incoming.body.as_ref() {
        b"bad" => CallResponse {
            status: 503,
            ..CallResponse::default()
        },
        _ => CallResponse::ok("done"),
    });
    let mut front = node.caller(1, "front");
    knows(&mut front, "back");
    let mut call = |body: &'static str| {
        let request = CallRequest {
            body: body.into(),
            ..CallRequest::default()
        };
        front
            .call(CallDestination::Function(&function("back")), &request)
            .unwrap()
            .status
    };
    assert!((1..times).all(|_| call("good") == 200) && call("bad") == 503);
    drop(front);
    node.hub.remove_instance(InstanceId(2));
    back.join().unwrap();
    node.until("all have left", |usage| {
        usage.endpoints == 0 && usage.channels == 0
    });
}

fn node_with(mode: DeliveryMode, stats: &SharedStats) -> TestNode {
    TestNode::started(|| {
        DomainHandle::start_with(
            DomainSettings {
                delivery: delivery(mode),
                ..DomainSettings::named("test")
            },
            stats,
        )
    })
}

pub(crate) fn counters_are_exact_and_outlive_channels_and_domain(mode: DeliveryMode) {
    let stats = SharedStats::default();
    for round in 1..=2 {
        let node = node_with(mode, &stats);
        calls(&node, 10);
        node.stop();
        let edges = stats.edge_counters(clock::monotonic_now());
        let [edge] = &edges[..] else {
            panic!("{edges:?}")
        };
        assert_eq!(
            (edge.caller.clone(), edge.callee.clone()),
            (Some(function("front")), Some(function("back")))
        );
        for side in [&edge.by_caller, &edge.by_callee] {
            assert_eq!(
                (side.messages, side.answered, side.failed, side.in_flight),
                (10 * round, 10 * round, round, 0)
            );
            assert_eq!(side.latency.iter().sum::<u64>(), 10 * round);
            assert!(side.bytes >= 10 * round * 64, "an envelope has 64 bytes");
        }
        assert!(edge.by_caller.total_micros > 0);
    }
    assert!(!stats.is_idle(), "it has a past");
    let later = clock::monotonic_now() + 2 * nearpath_domain::node_side::EDGE_RETENTION;
    assert!(
        stats.edge_counters(later).is_empty(),
        "and forgets its edges"
    );
    assert!(
        !stats.is_idle(),
        "but never how often its functions were called"
    );
}

pub(crate) fn held_bytes_are_reported_per_function(mode: DeliveryMode) {
    let stats = SharedStats::default();
    let node = node_with(mode, &stats);
    node.edges(&[("front", "back")]);
    let ((held, holding), (release, released)) = (mpsc::channel(), mpsc::channel::<()>());
    let back = node.serve(2, "back", move |_, incoming| {
        held.send(incoming.body.len()).unwrap();
        released.recv_timeout(TEST_TIMEOUT).unwrap();
        CallResponse::ok("late")
    });
    let mut front = node.caller(1, "front");
    knows(&mut front, "back");
    let caller = std::thread::spawn(move || {
        let request = CallRequest {
            body: vec![7; 60_000].into(),
            ..CallRequest::default()
        };
        front
            .call(CallDestination::Function(&function("back")), &request)
            .unwrap()
            .status
    });
    assert_eq!(holding.recv_timeout(TEST_TIMEOUT).unwrap(), 60_000);
    let holdings = stats.pool_usage().unwrap();
    let back_holds = holdings.by_function[&Some(function("back"))];
    assert_eq!(
        (back_holds.endpoints, back_holds.slots, back_holds.bytes),
        (1, 1, 65_536),
        "the call's slot is the callee's"
    );
    assert_eq!(
        back_holds.max_bytes,
        DomainSettings::named("x").max_held_bytes
    );
    assert_eq!(holdings.by_function[&Some(function("front"))].bytes, 0);
    assert_eq!(
        (
            holdings.used_bytes,
            holdings.dead_bytes,
            holdings.page_bytes,
            holdings.lacks_huge_pages
        ),
        (65_536, 0, 4096, false)
    );
    let slots: u64 = DomainSettings::named("x")
        .classes
        .iter()
        .map(|s| u64::from(s.size) * u64::from(s.count))
        .sum();
    assert_eq!(holdings.total_bytes, slots);
    release.send(()).unwrap();
    assert_eq!(caller.join().unwrap(), 200);
    node.until("all slots are back", |usage| usage.slots == 0);
    assert_eq!(stats.pool_usage().unwrap().used_bytes, 0);
    node.stop();
    back.join().unwrap();
    assert_eq!(stats.pool_usage(), None, "the pool went with its domain");
}

pub(crate) fn the_membership_lists_endpoints_and_channels(mode: DeliveryMode) {
    let stats = SharedStats::default();
    let node = node_with(mode, &stats);
    node.edges(&[("front", "back")]);
    let back = node.serve(2, "back", |_, _| CallResponse::ok(""));
    let mut front = node.caller(1, "front");
    knows(&mut front, "back");
    let membership = stats.membership();
    let by = |name: &str| {
        membership
            .endpoints
            .iter()
            .find(|(_, who)| who.function() == Some(&function(name)))
            .unwrap()
    };
    let ((first, _), (second, who)) = (by("front"), by("back"));
    assert_eq!(
        who,
        &EndpointOwner::Instance(InstanceId(2), function("back"))
    );
    assert_eq!(membership.channels, [(*first, *second)]);
    node.stop();
    back.join().unwrap();
    assert!(stats.membership().endpoints.is_empty() && stats.membership().channels.is_empty());
}
