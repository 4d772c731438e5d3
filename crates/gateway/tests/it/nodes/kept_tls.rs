//! Complete requests over kept TLS connections to other nodes.

use http::Response;
use nearpath_ca::Authority;
use nearpath_testkit::within;
use nearpath_types::FunctionPolicy;

use super::fixture::{TestNode, elsewhere, here, new_authority};
use super::own_port::publish_echo;
use super::permission::{FRONT, call_as_instance, calling, front_at_b};
use crate::fixture::{full_body, start_instance, start_mirror};

const OWN_PORT: &str = "tls; obstacle=kept_tls; node=b; then=loopback";
const WATCHDOG: &str = "tls; obstacle=kept_tls; node=b; then=http";

fn start_node(authority: &Authority, name: &'static str) -> TestNode {
    TestNode::with_kept_tls(authority, name)
}

/// Starts node a, which calls `echo` on b, where `instance` is its watchdog.
async fn start_pair(instance: std::net::SocketAddr) -> [TestNode; 2] {
    let authority = new_authority();
    let [a, b] = ["a", "b"].map(|name| start_node(&authority, name));
    let echo = |ready: &[_]| here("echo", FunctionPolicy::default(), ready);
    b.publish(&[], vec![echo(&[instance])]);
    a.publish(
        &[&b],
        vec![elsewhere("echo", FunctionPolicy::default(), &[&b])],
    );
    [a, b]
}

#[tokio::test]
async fn a_complete_request_goes_from_connection_to_own_port() {
    let authority = new_authority();
    let nodes = ["a", "b"].map(|name| start_node(&authority, name));
    let [a, _b] = publish_echo(nodes, start_mirror().await).await;
    let response = within(a.call_until_kept()).await;
    assert_eq!(response.header("x-nearpath-path"), OWN_PORT);
    let path = "/function/echo/deep/path?x=1";
    let response = within(a.post_until_kept(path, "")).await;
    let head = &response.body;
    assert!(head.starts_with("POST /deep/path?x=1\n"), "{head}");
    assert!(head.contains("x-forwarded-for: 127.0.0.1\n"), "{head}");
    assert!(!head.contains("x-nearpath-"), "a platform field: {head}");
    assert_eq!(response.header("content-type"), "text/plain");
    let body = "x".repeat(1024);
    for _ in 0..4 {
        let response = within(a.post_until_kept("/function/echo", &body)).await;
        assert_eq!(response.header("x-nearpath-path"), OWN_PORT);
        assert!(response.body.contains("content-length: 1024\n"));
        assert!(response.body.ends_with(&body));
    }
}

#[tokio::test]
async fn a_request_for_the_watchdog_takes_the_pipeline_of_the_other_node() {
    let [a, _b] = start_pair(start_mirror().await).await;
    let response = within(a.call_until_kept()).await;
    assert_eq!(response.header("x-nearpath-path"), WATCHDOG);
    let response = within(a.post_until_kept("/function/echo/x", "body")).await;
    assert!(response.body.starts_with("POST /x\n"), "{response:?}");
    assert!(response.body.ends_with("body"), "{response:?}");
}

#[tokio::test]
async fn a_long_response_arrives_whole() {
    let long = "y".repeat(3 << 20);
    let answer = long.clone();
    let instance = start_instance(move |_| {
        let body = answer.clone();
        async move { Response::new(full_body(body)) }
    });
    let [a, _b] = start_pair(instance.await).await;
    within(a.call_until_kept()).await;
    for _ in 0..3 {
        let response = a.get("/function/echo").await;
        assert_eq!((response.status, response.body == long), (200, true));
    }
}

#[tokio::test]
async fn the_called_node_checks_the_caller() {
    let authority = new_authority();
    let [a, b] = ["a", "b"].map(|name| start_node(&authority, name));
    let mirror = start_mirror().await;
    let echo = || here("echo", FunctionPolicy::default(), &[mirror]);
    let front = super::fixture::caller("front", calling(&["echo"], &["a"]), (FRONT, 1).into());
    let remote = elsewhere("echo", FunctionPolicy::default(), &[&b]);
    a.publish(&[&b], vec![front, remote]);
    b.publish(&[], vec![echo()]);
    within(a.call_until_kept()).await;
    let refused = call_as_instance(&a, "/function/echo").await;
    assert_eq!((refused.status, refused.reason()), (403, "not_allowed"));
    assert!(refused.body.contains("node a may not call"), "{refused:?}");
    // The same with the state in which it may.
    let known = front_at_b(calling(&["echo"], &["a"]));
    b.publish(&[], [known, vec![echo()]].concat());
    let allowed = call_as_instance(&a, "/function/echo").await;
    assert_eq!(allowed.status, 200, "{allowed:?}");
    let caller = "x-nearpath-caller: front.openfaas-fn\n";
    assert!(allowed.body.contains(caller), "{}", allowed.body);
}

#[tokio::test]
async fn a_call_that_did_not_run_goes_to_another_node() {
    let authority = new_authority();
    let [a, b, c] = ["a", "b", "c"].map(|name| start_node(&authority, name));
    let mirror = start_mirror().await;
    let echo = || here("echo", FunctionPolicy::default(), &[mirror]);
    b.publish(&[], vec![echo()]);
    c.publish(&[], vec![echo()]);
    let to = |nodes: &[&TestNode]| elsewhere("echo", FunctionPolicy::default(), nodes);
    a.publish(&[&b, &c], vec![to(&[&b])]);
    within(a.call_until_kept()).await;
    // Node b does not run it any more, which a does not know yet.
    b.publish(&[], vec![to(&[])]);
    a.publish(&[&b, &c], vec![to(&[&b, &c])]);
    for _ in 0..8 {
        let response = a.post("/function/echo", b"once".to_vec()).await;
        assert_eq!(response.status, 200, "{response:?}");
        assert!(response.body.ends_with("once"), "{response:?}");
    }
}

#[tokio::test]
async fn connections_that_the_other_node_has_closed_carry_nothing() {
    let authority = new_authority();
    let [a, mut b, c] = ["a", "b", "c"].map(|name| start_node(&authority, name));
    let mirror = start_mirror().await;
    for node in [&b, &c] {
        node.publish(
            &[],
            vec![here("echo", FunctionPolicy::default(), &[mirror])],
        );
    }
    let to = |nodes: &[&TestNode]| elsewhere("echo", FunctionPolicy::default(), nodes);
    a.publish(&[&b, &c], vec![to(&[&b])]);
    within(a.call_until_kept()).await;
    a.publish(&[&b, &c], vec![to(&[&b, &c])]);
    within(b.gateway.drain_gateway()).await;
    for _ in 0..8 {
        let response = a.post("/function/echo", b"once".to_vec()).await;
        assert_eq!(response.status, 200, "{response:?}");
    }
}

#[tokio::test]
async fn a_function_cannot_say_that_a_call_did_not_run() {
    let instance = start_instance(|_| async {
        let lie = Response::builder().header("x-nearpath-not-run", "draining");
        lie.body(full_body("ran")).unwrap()
    });
    let authority = new_authority();
    let nodes = ["a", "b"].map(|name| start_node(&authority, name));
    let [a, _b] = publish_echo(nodes, instance.await).await;
    let response = within(a.call_until_kept()).await;
    assert_eq!((response.status, &*response.body), (200, "ran"));
    assert!(!response.headers.contains_key("x-nearpath-not-run"));
}
