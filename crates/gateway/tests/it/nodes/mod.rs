//! Calls between nodes, each with its own gateway.

mod fixture;
mod permission;

use nearpath_types::FunctionPolicy;

use crate::fixture::{start_blocked_instance, start_mirror};
use fixture::{TestNode, elsewhere, here, new_authority, remotes};

#[tokio::test]
async fn a_function_of_another_node_answers_over_quic() {
    let authority = new_authority();
    let [a, b] = ["a", "b"].map(|name| TestNode::start(&authority, name));
    let mirror = start_mirror().await;
    b.publish(
        &[],
        vec![here("echo", FunctionPolicy::default(), &[mirror])],
    );
    a.publish(
        &[&b],
        vec![elsewhere("echo", FunctionPolicy::default(), &[&b])],
    );
    for _ in 0..3 {
        let response = a.get("/function/echo/deep/path?x=1").await;
        assert_eq!(response.status, 200, "{response:?}");
        assert_eq!(
            response.header("x-nearpath-path"),
            "quic; obstacle=other_node; node=b; then=http"
        );
        let head = &response.body;
        assert!(head.starts_with("GET /deep/path?x=1\n"), "{head}");
        assert!(head.contains("x-forwarded-for: 127.0.0.1\n"), "{head}");
        assert!(
            !head.contains("x-nearpath-"),
            "a field of the platform: {head}"
        );
    }
}

#[tokio::test]
async fn a_long_body_goes_over_tls() {
    let authority = new_authority();
    let [a, b] = ["a", "b"].map(|name| TestNode::start(&authority, name));
    let mirror = start_mirror().await;
    b.publish(
        &[],
        vec![here("echo", FunctionPolicy::default(), &[mirror])],
    );
    a.publish(
        &[&b],
        vec![elsewhere("echo", FunctionPolicy::default(), &[&b])],
    );
    let body = vec![b'x'; 300 * 1024];
    let response = a.post("/function/echo", body.clone()).await;
    assert_eq!(response.status, 200, "{response:?}");
    assert_eq!(
        response.header("x-nearpath-path"),
        "tls; obstacle=bulk; node=b; then=http"
    );
    assert!(response.body.ends_with(std::str::from_utf8(&body).unwrap()));
}

#[tokio::test]
async fn a_call_that_would_wait_goes_to_another_node_and_no_further() {
    let authority = new_authority();
    let [a, b] = ["a", "b"].map(|name| TestNode::start(&authority, name));
    let limit = FunctionPolicy {
        max_inflight: Some(1),
        ..FunctionPolicy::default()
    };
    let (busy, free) = (start_blocked_instance().await, start_mirror().await);
    let with_remote = |node, addr| nearpath_types::FunctionRoute {
        remotes: remotes(&[node], 1),
        ..here("echo", limit.clone(), &[addr])
    };
    // Each believes that the other has a free place. Only one call may go from a to b.
    a.publish(&[&b], vec![with_remote(&b, busy.addr)]);
    b.publish(&[&a], vec![with_remote(&a, free)]);
    let public = a.gateway.public;
    let first = tokio::spawn(async move {
        let request = http::Request::get("/function/echo").body(crate::fixture::full_body(""));
        crate::fixture::send_and_collect(public, request.unwrap()).await
    });
    busy.wait_for_requests(1).await;
    let second = a.get("/function/echo").await;
    assert_eq!(
        (second.status, second.header("x-nearpath-path")),
        (200, "quic; obstacle=other_node; node=b; then=http")
    );
    busy.permits.add_permits(1);
    assert_eq!(first.await.unwrap().body, "ok");
}

#[tokio::test]
async fn a_node_without_the_function_did_not_run_the_call() {
    let authority = new_authority();
    let [a, b, c] = ["a", "b", "c"].map(|name| TestNode::start(&authority, name));
    let mirror = start_mirror().await;
    // Node b does not run it (any more), c does.
    b.publish(&[], vec![elsewhere("echo", FunctionPolicy::default(), &[])]);
    c.publish(
        &[],
        vec![here("echo", FunctionPolicy::default(), &[mirror])],
    );
    let route = elsewhere("echo", FunctionPolicy::default(), &[&b, &c]);
    a.publish(&[&b, &c], vec![route]);
    for _ in 0..8 {
        let response = a.post("/function/echo", b"once".to_vec()).await;
        assert_eq!(response.status, 200, "{response:?}");
        assert!(response.body.ends_with("once"));
    }
}
