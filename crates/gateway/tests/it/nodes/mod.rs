//! Calls between nodes, each with its own gateway.

mod certificates;
mod counters;
mod fixture;
mod kept_client;
mod kept_tls;
mod kept_tls_ends;
mod kept_tls_surplus;
mod node_requests;
mod own_port;
mod permission;
mod upgrades;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::Response;
use nearpath_types::FunctionPolicy;

use crate::fixture::{full_body, start_blocked_instance, start_instance, start_mirror};
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

#[tokio::test]
async fn a_call_wakes_a_sleeping_function_on_the_first_of_its_nodes() {
    let authority = new_authority();
    let [a, mut b, c] = ["a", "b", "c"].map(|name| TestNode::start(&authority, name));
    let sleeping = || here("echo", FunctionPolicy::default(), &[]);
    b.publish(&[], vec![sleeping()]);
    c.publish(&[], vec![sleeping()]);
    let route = nearpath_types::FunctionRoute {
        remotes: remotes(&[&b, &c], 0),
        ..elsewhere("echo", FunctionPolicy::default(), &[])
    };
    a.publish(&[&b, &c], vec![route]);
    let calling = a.get("/function/echo");
    let waking = async {
        let woken = nearpath_testkit::within(b.gateway.wakes.recv()).await;
        assert_eq!(woken.unwrap().to_string(), "echo.openfaas-fn");
        let mirror = start_mirror().await;
        b.publish(
            &[],
            vec![here("echo", FunctionPolicy::default(), &[mirror])],
        );
    };
    let (response, ()) = tokio::join!(calling, waking);
    assert_eq!(response.status, 200, "{response:?}");
}

#[tokio::test]
async fn three_gateways_never_exceed_a_limit_of_one() {
    let authority = new_authority();
    let [a, b, c] = ["a", "b", "c"].map(|name| TestNode::start(&authority, name));
    let limit = FunctionPolicy {
        max_inflight: Some(1),
        ..FunctionPolicy::default()
    };
    let (open, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let counts = (open, most.clone());
    let instance = start_instance(move |_| {
        let (open, most) = counts.clone();
        async move {
            let now = open.fetch_add(1, Ordering::SeqCst) + 1;
            most.fetch_max(now, Ordering::SeqCst);
            tokio::task::yield_now().await;
            open.fetch_sub(1, Ordering::SeqCst);
            Response::new(full_body("ok"))
        }
    })
    .await;
    c.publish(&[], vec![here("echo", limit.clone(), &[instance])]);
    for node in [&a, &b] {
        node.publish(&[&c], vec![elsewhere("echo", limit.clone(), &[&c])]);
    }
    let calls = (0..60).map(|number| [&a, &b, &c][number % 3].get("/function/echo"));
    for response in futures_util::future::join_all(calls).await {
        assert_eq!(response.status, 200, "{response:?}");
    }
    assert_eq!(most.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn the_end_of_a_node_fails_only_the_calls_inside_it() {
    let authority = new_authority();
    let [a, b, c] = ["a", "b", "c"].map(|name| TestNode::start(&authority, name));
    let (stuck, mirror) = (start_blocked_instance().await, start_mirror().await);
    b.publish(
        &[],
        vec![here("echo", FunctionPolicy::default(), &[stuck.addr])],
    );
    c.publish(
        &[],
        vec![here("echo", FunctionPolicy::default(), &[mirror])],
    );
    a.publish(
        &[&b, &c],
        vec![elsewhere("echo", FunctionPolicy::default(), &[&b])],
    );
    let inside = a.get("/function/echo");
    let ending = async {
        stuck.wait_for_requests(1).await;
        a.publish(
            &[&c],
            vec![elsewhere("echo", FunctionPolicy::default(), &[&c])],
        );
        a.get("/function/echo").await
    };
    let (inside, next) = tokio::join!(inside, ending);
    assert_eq!(
        (inside.status, inside.reason()),
        (502, "instance_died"),
        "{inside:?}"
    );
    assert!(inside.body.contains("node b"), "{}", inside.body);
    assert_eq!(next.status, 200, "{next:?}");
}

#[tokio::test]
async fn a_node_that_drains_refuses_calls_as_not_run() {
    let authority = new_authority();
    let [a, mut b, c] = ["a", "b", "c"].map(|name| TestNode::start(&authority, name));
    let mirror = start_mirror().await;
    for node in [&b, &c] {
        node.publish(
            &[],
            vec![here("echo", FunctionPolicy::default(), &[mirror])],
        );
    }
    // Connections to both exist before b drains.
    a.publish(
        &[&b, &c],
        vec![elsewhere("echo", FunctionPolicy::default(), &[&b])],
    );
    assert_eq!(a.get("/function/echo").await.status, 200);
    let route = elsewhere("echo", FunctionPolicy::default(), &[&b, &c]);
    a.publish(&[&b, &c], vec![route]);
    nearpath_testkit::within(b.gateway.drain_gateway()).await;
    for _ in 0..20 {
        let response = a.post("/function/echo", b"once".to_vec()).await;
        assert_eq!(response.status, 200, "{response:?}");
    }
}
