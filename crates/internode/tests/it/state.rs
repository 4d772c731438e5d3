//! Changes of one node's state, as others see them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use nearpath_internode::PeerAvailability;
use tokio::sync::watch;

use crate::fixture::{Follower, RenewedDialer, TestNode, down_cause, is_up, load, loads};

#[tokio::test]
async fn a_change_of_readiness_is_seen_by_another_node() {
    let node = TestNode::start("b").await;
    node.set(&[("echo", load(1, 0)), ("asleep.dev", load(0, 0))]);
    let mut follower = Follower::start_with(&[&node]);
    let first = follower.wait_up("b").await;
    let expected = [
        ("asleep.dev".to_owned(), (0, 0)),
        ("echo.openfaas-fn".to_owned(), (1, 0)),
    ];
    assert_eq!(loads(&first), expected.into());
    assert_eq!(first.node.as_ref().unwrap().addr, node.addr);
    assert_eq!(first.version.as_deref(), Some("0.1.0"));
    assert!(first.round_trip.is_some() && first.clock_offset_micros.is_some());
    node.set(&[("echo", load(2, 5)), ("asleep.dev", None)]);
    follower
        .wait("b", |status| {
            loads(status) == [("echo.openfaas-fn".to_owned(), (2, 5))].into()
        })
        .await;
}

#[tokio::test]
async fn a_change_of_load_alone_is_seen_too() {
    let node = TestNode::start("b").await;
    node.set(&[("echo", load(1, 0))]);
    let mut follower = Follower::start_with(&[&node]);
    follower.wait_up("b").await;
    for requests in 1..=200 {
        node.set(&[("echo", load(1, requests))]);
    }
    let newest = [("echo.openfaas-fn".to_owned(), (1, 200))].into();
    follower.wait("b", |status| loads(status) == newest).await;
}

#[tokio::test]
async fn a_node_that_drains_says_so() {
    let node = TestNode::start("b").await;
    let mut follower = Follower::start_with(&[&node]);
    assert!(follower.wait_up("b").await.callable_node().is_some());
    let draining = Arc::new(node.state.borrow().with_draining(true));
    node.state.send_replace(draining);
    let status = follower.wait("b", |status| status.is_draining).await;
    assert!(is_up(&status) && status.callable_node().is_none());
}

#[tokio::test]
async fn a_renewed_certificate_subscribes_again_and_the_node_stays_up() {
    let node = TestNode::start("b").await;
    node.set(&[("echo", load(1, 0))]);
    let peers = [("b", node.addr.to_string())];
    let (renewals, renewed) = watch::channel(0);
    let dialer = Arc::new(RenewedDialer(renewed));
    let mut follower = Follower::start_dialing("a", &peers, dialer);
    let first = follower.wait_up("b").await;
    for renewal in 1..=3 {
        renewals.send_replace(renewal);
        let status = follower
            .wait("b", |status| status.reconnects == u64::from(renewal))
            .await;
        // The last state stays until the new one is complete.
        assert_eq!((is_up(&status), loads(&status)), (true, loads(&first)));
        assert_eq!(status.since, first.since, "it was never down");
    }
    node.set(&[("echo", load(2, 0))]);
    follower
        .wait("b", |status| loads(status)["echo.openfaas-fn"] == (2, 0))
        .await;
}

#[tokio::test]
async fn three_nodes_see_each_other() {
    let nodes = [
        TestNode::start("a").await,
        TestNode::start("b").await,
        TestNode::start("c").await,
    ];
    let list: Vec<_> = nodes
        .iter()
        .map(|node| (node.name.as_str(), node.addr.to_string()))
        .collect();
    for node in &nodes {
        node.set(&[(&format!("of-{}", node.name), load(1, 0))]);
    }
    for own in ["a", "b", "c"] {
        let mut follower = Follower::start_as(own, &list);
        follower
            .wait_all("two others", |states| {
                let is_complete = |name: &&str| {
                    let status = states.peers.get(*name);
                    let function = format!("of-{name}.openfaas-fn");
                    status.is_some_and(|one| is_up(one) && loads(one).contains_key(&function))
                };
                let others = ["a", "b", "c"].into_iter().filter(|name| *name != own);
                others.collect::<Vec<_>>().iter().all(is_complete)
            })
            .await;
        assert!(
            !follower.states.borrow().peers.contains_key(own),
            "never itself"
        );
    }
}

#[tokio::test]
async fn a_killed_node_is_down_and_comes_back_empty() {
    let node = TestNode::start("b").await;
    node.set(&[("echo", load(1, 0))]);
    let mut follower = Follower::start_with(&[&node]);
    let first = follower.wait_up("b").await;
    node.kill();
    let down = follower
        .wait("b", |status| down_cause(status).is_some())
        .await;
    assert!(down.functions.is_empty());
    assert_eq!(
        down.incarnation, first.incarnation,
        "the last that is known"
    );
    let node = node.restart().await;
    node.set(&[("other", load(1, 0))]);
    let expected = [("other.openfaas-fn".to_owned(), (1, 0))].into();
    let again = follower
        .wait("b", |status| is_up(status) && loads(status) == expected)
        .await;
    assert_ne!(again.incarnation, first.incarnation);
    assert!(again.reconnects >= 1);
}

#[tokio::test]
async fn a_node_that_answers_no_pings_is_down_though_its_state_still_comes() {
    let node = TestNode::start("b").await;
    let mut follower = Follower::start_with(&[&node]);
    follower.wait_up("b").await;
    node.is_mute.store(true, Ordering::Relaxed);
    follower
        .wait_cause("b", "no ping was answered in time")
        .await;
    node.is_mute.store(false, Ordering::Relaxed);
    follower.wait_up("b").await;
}

#[tokio::test]
async fn a_flapping_node_is_held_down() {
    let mut node = TestNode::start("b").await;
    let mut follower = Follower::start_with(&[&node]);
    for _ in 0..3 {
        follower.wait_up("b").await;
        node.kill();
        follower.wait_down("b").await;
        node = node.restart().await;
    }
    let is_held = |state: &PeerAvailability| matches!(state, PeerAvailability::HeldDown { .. });
    let held = follower
        .wait("b", |status| is_held(&status.availability))
        .await;
    assert!(held.callable_node().is_none());
    follower.wait_up("b").await;
}

#[tokio::test]
async fn a_thousand_functions_arrive_and_change() {
    let node = TestNode::start("b").await;
    let names: Vec<String> = (0..1_000).map(|number| format!("f{number}")).collect();
    let set_all = |ready| {
        let functions: Vec<_> = names
            .iter()
            .map(|id| (id.as_str(), load(ready, 0)))
            .collect();
        node.set(&functions);
    };
    set_all(0);
    let mut follower = Follower::start_with(&[&node]);
    assert_eq!(follower.wait_up("b").await.functions.len(), 1_000);
    set_all(1);
    follower
        .wait("b", |status| {
            status.functions.values().all(|load| load.ready == 1)
        })
        .await;
    node.set(&[("f7", None)]);
    follower
        .wait("b", |status| status.functions.len() == 999)
        .await;
}

#[tokio::test]
async fn metrics_follow_the_states() {
    let node = TestNode::start("b").await;
    let mut follower = Follower::start_with(&[&node]);
    follower.wait_up("b").await;
    let text = follower.registry.encode();
    assert!(
        text.contains("nearpath_peer_up{node=\"b\"} 1.0\n"),
        "{text}"
    );
    assert!(
        text.contains("nearpath_peer_reconnects_total{node=\"b\"} 0\n"),
        "{text}"
    );
    for gauge in ["round_trip", "clock_offset"] {
        let start = format!("nearpath_peer_{gauge}_seconds{{node=\"b\"}} ");
        assert!(text.contains(&start), "{text}");
    }
    node.kill();
    follower.wait_down("b").await;
    let text = follower.registry.encode();
    assert!(
        text.contains("nearpath_peer_up{node=\"b\"} 0.0\n"),
        "{text}"
    );
}
