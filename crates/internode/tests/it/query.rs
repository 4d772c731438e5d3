//! Queries of other nodes.

use std::sync::Arc;

use nearpath_internode::{PeerClient, QueryError};
use nearpath_testkit::within;

use crate::fixture::{Follower, PlainDialer, TestNode, name};

const PING: &str = "/node/v1/ping";
const STATE: &str = "/node/v1/state";

fn client_of(follower: &Follower) -> PeerClient {
    PeerClient::new(Arc::new(PlainDialer), follower.states.clone())
}

#[tokio::test]
async fn a_node_that_is_up_answers() {
    let node = TestNode::start("b").await;
    let mut follower = Follower::start_with(&[&node]);
    let client = client_of(&follower);
    within(client.wait_up(&node.name)).await;
    follower.wait_up("b").await;
    let reply = within(client.fetch(&node.name, PING)).await.unwrap();
    assert!(reply.starts_with(b"{\"time\":"), "{reply:?}");
    let unknown = within(client.fetch(&node.name, "/node/v1/later")).await;
    assert!(
        matches!(unknown, Err(QueryError::UnknownQuery)),
        "{unknown:?}"
    );
    let stranger = within(client.fetch(&name("z"), PING)).await;
    assert!(
        matches!(stranger, Err(QueryError::UnknownNode)),
        "{stranger:?}"
    );
}

#[tokio::test]
async fn a_node_that_is_down_fails_at_once_with_the_cause() {
    let node = TestNode::start("b").await;
    let mut follower = Follower::start_with(&[&node]);
    follower.wait_up("b").await;
    node.kill();
    let cause = follower.wait_down("b").await;
    let failed = within(client_of(&follower).fetch(&node.name, PING)).await;
    let Err(QueryError::NotUp(text)) = failed else {
        panic!("{failed:?}")
    };
    assert!(!cause.is_empty() && !text.is_empty());
}

#[tokio::test]
async fn a_silent_node_takes_no_longer_than_the_limit() {
    let node = TestNode::start("b").await;
    let mut follower = Follower::start_with(&[&node]);
    follower.wait_up("b").await;
    // A ping is the only response of this node that can be withheld.
    node.is_mute
        .store(true, std::sync::atomic::Ordering::Relaxed);
    let failed = within(client_of(&follower).fetch(&node.name, PING)).await;
    // The node may go down for its silence before.
    let is_expected = matches!(failed, Err(QueryError::Timeout | QueryError::NotUp(_)));
    assert!(is_expected, "{failed:?}");
}

#[tokio::test]
async fn a_stream_of_lines_ends_with_its_node() {
    let node = TestNode::start("b").await;
    let mut follower = Follower::start_with(&[&node]);
    follower.wait_up("b").await;
    let mut lines = within(client_of(&follower).stream(&node.name, STATE))
        .await
        .unwrap();
    let first = within(lines.next_line()).await.unwrap().unwrap();
    assert!(first.starts_with(b"{\"hello\":"), "{first:?}");
    node.kill();
    let end = within(async {
        loop {
            match lines.next_line().await {
                Ok(Some(_)) => {}
                end => return end,
            }
        }
    });
    assert!(end.await.is_err());
}
