//! Changes of the list of nodes.

use std::sync::Arc;

use crate::fixture::{Follower, TestNode, addresses, load, name};

#[tokio::test]
async fn nodes_are_added_moved_and_removed() {
    let (first, second) = (TestNode::start("b").await, TestNode::start("b").await);
    let other = TestNode::start("c").await;
    let mut follower = Follower::start_with(&[&first]);
    follower.wait_up("b").await;
    let send = |follower: &Follower, list: &[(&str, &TestNode)]| {
        let list: Vec<_> = list
            .iter()
            .map(|(id, node)| (*id, node.addr.to_string()))
            .collect();
        follower.nodes.send_replace(Arc::new(addresses(&list)));
    };
    send(&follower, &[("b", &first), ("c", &other)]);
    follower.wait_up("c").await;
    let addr_of = |status: &nearpath_internode::PeerStatus| status.node.as_ref().map(|n| n.addr);
    send(&follower, &[("b", &second), ("c", &other)]);
    second.set(&[("moved", load(1, 0))]);
    follower
        .wait("b", |status| {
            addr_of(status) == Some(second.addr) && status.functions.len() == 1
        })
        .await;
    send(&follower, &[("c", &other)]);
    follower
        .wait_all("b is gone", |states| !states.peers.contains_key("b"))
        .await;
    follower.wait_up("c").await;
}

#[tokio::test]
async fn states_share_nodes_that_did_not_change() {
    let node = TestNode::start("b").await;
    // A node that is never connected has no pings, so its state does not change.
    let list = [("b", node.addr.to_string()), ("c", "no port".to_owned())];
    let mut follower = Follower::start(&list);
    follower.wait_up("b").await;
    follower.wait_down("c").await;
    let before = follower.states.borrow().clone();
    node.set(&[("echo", load(1, 0))]);
    follower
        .wait("b", |status| status.functions.len() == 1)
        .await;
    let after = follower.states.borrow().clone();
    let of = |states: &nearpath_internode::PeerStates| states.peers[&name("c")].clone();
    assert!(Arc::ptr_eq(&of(&before), &of(&after)));
}

#[tokio::test]
async fn names_are_resolved_and_unknown_ones_are_a_cause() {
    let node = TestNode::start("b").await;
    let local = format!("localhost:{}", node.addr.port());
    let unknown = "node.invalid:8444".to_owned();
    // `localhost` may be an IPv6 address first; the next attempt tries the other.
    let mut follower = Follower::start(&[("b", local), ("c", unknown)]);
    follower.wait_up("b").await;
    let cause = follower.wait_down("c").await;
    assert!(
        cause.starts_with("cannot resolve \"node.invalid:8444\": "),
        "{cause}"
    );
}

#[tokio::test]
async fn connections_end_with_the_list() {
    let node = TestNode::start("b").await;
    let mut follower = Follower::start_with(&[&node]);
    follower.wait_up("b").await;
    let (sender, _) = tokio::sync::watch::channel(Arc::default());
    drop(std::mem::replace(&mut follower.nodes, sender));
    let is_closed = async || follower.states.has_changed().is_err();
    nearpath_testkit::eventually("the states end", is_closed).await;
    let status = follower.states.borrow().peers["b"].clone();
    assert!(status.callable_node().is_none() && status.functions.is_empty());
}
