//! Refusals of calls between nodes: each names the node and the cause.

use nearpath_types::{FunctionId, FunctionPolicy, FunctionRoute};

use super::fixture::{TestNode, caller, elsewhere, here, new_authority};
use crate::fixture::{CollectedResponse, connect_from, start_mirror};
use http_body_util::BodyExt;
use hyper_util::rt::TokioIo;

/// Address of the instance that calls.
pub(super) const FRONT: [u8; 4] = [127, 0, 0, 9];

pub(super) fn calling(callees: &[&str], nodes: &[&str]) -> FunctionPolicy {
    let id = |name: &&str| name.parse::<FunctionId>().unwrap();
    FunctionPolicy {
        calls: callees.iter().map(id).collect(),
        nodes: nodes.iter().map(|name| name.parse().unwrap()).collect(),
        ..FunctionPolicy::default()
    }
}

pub(super) async fn call_as_instance(node: &TestNode, path: &str) -> CollectedResponse {
    let stream = connect_from(FRONT, node.gateway.internal).await;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .unwrap();
    tokio::spawn(connection);
    let request = http::Request::get(path).header("host", "gateway");
    let request = request.body(crate::fixture::full_body("")).unwrap();
    let response = nearpath_testkit::within(sender.send_request(request))
        .await
        .unwrap();
    let (head, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    CollectedResponse {
        status: head.status.as_u16(),
        headers: head.headers,
        body: String::from_utf8(body.to_vec()).unwrap(),
        trailers: None,
    }
}

/// Two nodes; `front` runs on a and calls `echo` on b, as b knows it.
async fn call_front_to_echo(known_to_b: Vec<FunctionRoute>) -> CollectedResponse {
    let authority = new_authority();
    let [a, b] = ["a", "b"].map(|name| TestNode::start(&authority, name));
    let mirror = start_mirror().await;
    let front = caller("front", calling(&["echo"], &["a"]), (FRONT, 1).into());
    a.publish(
        &[&b],
        vec![front, elsewhere("echo", FunctionPolicy::default(), &[&b])],
    );
    let echo = here("echo", FunctionPolicy::default(), &[mirror]);
    b.publish(&[], [known_to_b, vec![echo]].concat());
    call_as_instance(&a, "/function/echo").await
}

pub(super) fn front_at_b(policy: FunctionPolicy) -> Vec<FunctionRoute> {
    vec![elsewhere("front", policy, &[])]
}

#[tokio::test]
async fn a_declared_edge_crosses_nodes_and_the_callee_sees_the_caller() {
    let response = call_front_to_echo(front_at_b(calling(&["echo"], &["a"]))).await;
    assert_eq!(response.status, 200, "{response:?}");
    let head = &response.body;
    assert!(
        head.contains("x-nearpath-caller: front.openfaas-fn\n"),
        "{head}"
    );
}

#[tokio::test]
async fn the_called_node_refuses_what_its_own_state_does_not_permit() {
    let elsewhere = "it runs on c (nearpath.io/nodes)";
    for (known, why) in [
        (
            vec![],
            "node a may not call echo.openfaas-fn for front.openfaas-fn: this node knows no such function",
        ),
        (front_at_b(calling(&["echo"], &["c"])), elsewhere),
        (
            front_at_b(calling(&[], &["a"])),
            "front.openfaas-fn may not call echo.openfaas-fn: that edge is not declared",
        ),
    ] {
        let response = call_front_to_echo(known).await;
        assert_eq!((response.status, response.reason()), (403, "not_allowed"));
        assert!(response.body.contains(why), "{}", response.body);
    }
}
