//! A node that drains waits until the routes of others reflect it.

use std::sync::Arc;
use std::time::Duration;

use http::Request;
use nearpath_internode::PeerStatus;
use nearpath_internode::protocol::STATE_PATH;
use nearpath_testkit::within;
use nearpath_wire::Body;

use crate::fixture::{Follower, TestNode, down_cause, name};

/// Longer than any wait of these tests, unless the node never learns of it.
const LIMIT: Duration = Duration::from_secs(20);

fn begin_drain(node: &TestNode) {
    let draining = Arc::new(node.state.borrow().with_draining(true));
    node.state.send_replace(draining);
}

#[tokio::test]
async fn a_drain_is_applied_when_the_routes_of_a_subscriber_reflect_it() {
    let node = TestNode::start("b").await;
    let mut follower = Follower::start_with(&[&node]);
    follower.wait_up("b").await;
    follower
        .applied
        .send_replace(follower.states.borrow().clone());
    begin_drain(&node);
    follower.wait("b", |status| status.is_draining).await;
    let service = node.service.clone();
    let waiting = tokio::spawn(async move { service.wait_drain_applied(LIMIT).await });
    tokio::task::yield_now().await;
    assert!(!waiting.is_finished());
    follower
        .applied
        .send_replace(follower.states.borrow().clone());
    within(waiting).await.unwrap().unwrap();
}

/// Gateways close the connections to nodes that are not reachable, and calls on them end.
#[tokio::test]
async fn a_node_that_ends_its_reports_while_it_drains_stays_reachable() {
    let (draining, killed) = (TestNode::start("b").await, TestNode::start("c").await);
    let mut follower = Follower::start_with(&[&draining, &killed]);
    follower.wait_up("b").await;
    follower.wait_up("c").await;
    begin_drain(&draining);
    follower.wait("b", |status| status.is_draining).await;
    draining.kill();
    killed.kill();
    let is_down = |status: &PeerStatus| down_cause(status).is_some();
    let left = follower.wait("b", is_down).await;
    assert!(left.is_reachable() && left.callable_node().is_none());
    assert!(!follower.wait("c", is_down).await.is_reachable());
}

#[tokio::test]
async fn a_drain_that_routes_never_reflect_is_reported_with_the_node() {
    let node = TestNode::start("b").await;
    let mut follower = Follower::start_with(&[&node]);
    follower.wait_up("b").await;
    follower
        .applied
        .send_replace(follower.states.borrow().clone());
    begin_drain(&node);
    follower.wait("b", |status| status.is_draining).await;
    let limit = Duration::from_millis(1_500); // longer than an older release has
    // The fixture serves all nodes as `peer`.
    let pending = within(node.service.wait_drain_applied(limit)).await;
    assert_eq!(pending, Err(vec![name("peer")]));
}

#[tokio::test]
async fn an_older_release_that_never_reports_ends_no_drain() {
    let node = TestNode::start("b").await;
    let subscribe = Request::get(STATE_PATH).body(Body::empty()).unwrap();
    let stream = node.service.respond(&name("old"), subscribe).await;
    begin_drain(&node);
    let pending = node.service.wait_drain_applied(Duration::ZERO).await;
    assert_eq!(pending, Err(vec![name("old")]));
    node.service.wait_drain_applied(LIMIT).await.unwrap();
    drop(stream);
    let nobody = node.service.wait_drain_applied(Duration::ZERO).await;
    assert_eq!(nobody, Ok(()));
}
