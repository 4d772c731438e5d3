//! A process that another one of its node replaces: subscribers follow, and the node is never down.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::Request;
use nearpath_internode::protocol::STATE_PATH;
use nearpath_internode::{PeerAvailability, PeerStates};
use nearpath_testkit::within;
use nearpath_wire::Body;
use tokio::task::JoinHandle;

use crate::fixture::{Follower, TestNode, is_up, load, loads, name};

/// Longer than any wait of these tests, unless subscribers do not follow.
const LIMIT: Duration = Duration::from_secs(20);

/// Reflects each state in the routes at once, and notes whether node b was ever not in use.
fn follow_routes(follower: &Follower) -> (JoinHandle<()>, Arc<Mutex<Vec<PeerAvailability>>>) {
    let (mut states, applied) = (follower.states.clone(), follower.applied.clone());
    let seen = Arc::<Mutex<Vec<_>>>::default();
    let gaps = seen.clone();
    let routes = tokio::spawn(async move {
        loop {
            let now: Arc<PeerStates> = states.borrow_and_update().clone();
            let status = &now.peers["b"];
            if !is_up(status) || status.functions.is_empty() {
                gaps.lock().unwrap().push(status.availability.clone());
            }
            applied.send_replace(now);
            if states.changed().await.is_err() {
                return;
            }
        }
    });
    (routes, seen)
}

/// Number of the run to which calls of node b go.
fn incarnation_of(follower: &Follower) -> u64 {
    let states = follower.states.borrow();
    states.peers["b"].node.as_ref().unwrap().incarnation
}

#[tokio::test]
async fn subscribers_follow_a_replaced_process_and_the_node_stays_in_use() {
    let old = TestNode::start("b").await;
    old.set(&[("echo", load(1, 0))]);
    let mut follower = Follower::start_with(&[&old]);
    follower
        .wait("b", |status| is_up(status) && !loads(status).is_empty())
        .await;
    let (routes, gaps) = follow_routes(&follower);
    let first = incarnation_of(&follower);
    assert_ne!(first, 0);
    let new = old.hand_over().await;
    new.set(&[("echo", load(2, 0))]);
    old.service.begin_handover();
    old.announce_successor();
    let followed = within(old.service.wait_followed(LIMIT)).await;
    assert_eq!(followed, Ok(()));
    follower
        .wait("b", |status| loads(status)["echo.openfaas-fn"] == (2, 0))
        .await;
    assert_ne!(incarnation_of(&follower), first);
    drop(old);
    // A ping and a change after the end of the old process.
    new.set(&[("echo", load(3, 0))]);
    follower
        .wait("b", |status| loads(status)["echo.openfaas-fn"] == (3, 0))
        .await;
    routes.abort();
    assert_eq!(*gaps.lock().unwrap(), []);
}

/// Control: a process that ends without a word leaves a gap.
#[tokio::test]
async fn control_a_process_that_ends_without_a_word_is_down() {
    let old = TestNode::start("b").await;
    old.set(&[("echo", load(1, 0))]);
    let mut follower = Follower::start_with(&[&old]);
    follower
        .wait("b", |status| is_up(status) && !loads(status).is_empty())
        .await;
    let (_routes, gaps) = follow_routes(&follower);
    let new = old.hand_over().await;
    new.set(&[("echo", load(2, 0))]);
    drop(old);
    follower
        .wait("b", |status| {
            is_up(status) && loads(status).get("echo.openfaas-fn") == Some(&(2, 0))
        })
        .await;
    assert_ne!(*gaps.lock().unwrap(), []);
}

#[tokio::test]
async fn subscribers_of_older_releases_are_named() {
    let node = TestNode::start("b").await;
    let subscribe = Request::get(STATE_PATH).body(Body::empty()).unwrap();
    let _stream = node.service.respond(&name("old"), subscribe).await;
    node.service.begin_handover();
    node.announce_successor();
    let followed = node.service.wait_followed(Duration::ZERO).await;
    assert_eq!(followed, Err(vec![name("old")]));
}
