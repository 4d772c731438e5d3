//! Kept connections end with the other node, its certificate's root, and the caller.

use std::sync::Arc;

use http::{Request, Response};
use hyper::body::Incoming;
use nearpath_ca::Authority;
use nearpath_testkit::{eventually, within};
use nearpath_types::{FunctionLoad, FunctionPolicy, FunctionRoute, RemoteInstances};
use nearpath_wire::node_tls::NodeTls;
use tokio::sync::{mpsc, watch};

use super::certificates::{HOUR, node_tls};
use super::fixture::{TestNode, elsewhere, here, new_authority};
use super::kept_client::KeptClient;
use crate::fixture::{
    TestGateway, full_body, millis, start_blocked_instance, start_instance, start_mirror,
};

/// Starts a node with these certificates, whose sender renews those for calls of other nodes.
fn start_node(name: &'static str, tls: NodeTls) -> (TestNode, watch::Sender<Arc<NodeTls>>) {
    let (sender, receiver) = watch::channel(Arc::new(tls));
    let gateway = TestGateway::with_node_tls(receiver, 2);
    (TestNode { name, gateway }, sender)
}

fn echo_on(nodes: &[&TestNode]) -> FunctionRoute {
    let policy = FunctionPolicy {
        cold_timeout: millis(100), // a node that refuses connections is tried again for this time
        ..FunctionPolicy::default()
    };
    elsewhere("echo", policy, nodes)
}

/// Renews the certificates of a node, which then accepts this root alone.
fn renewed(tls: &NodeTls, authority: &Authority, node: &str) -> NodeTls {
    let next = node_tls(authority, node, HOUR, &[authority]);
    tls.renewed(next.credentials().clone()).unwrap()
}

/// Waits until calls to node b are refused, and checks that they then go to c.
async fn wait_refused(client: &mut KeptClient, a: &TestNode, [b, c]: [&TestNode; 2]) {
    eventually("calls to b are refused", async || {
        let response = client.get("/function/echo").await;
        assert!(matches!(response.status(), 200 | 502 | 503), "{response:?}");
        if std::env::var_os("DBG").is_some() {
            eprintln!("{response:?}");
        }
        response.status() != 200
    })
    .await;
    a.publish(&[b, c], vec![echo_on(&[b, c])]);
    eventually("calls go to c", async || {
        let response = client.get("/function/echo").await;
        response.field("x-nearpath-path").contains("node=c")
    })
    .await;
}

/// Starts node a, whose kept connection leads to b, and c. Node b has a certificate of the old authority.
async fn start_with_roots(
    old: &Authority,
    new: &Authority,
) -> ([TestNode; 3], [watch::Sender<Arc<NodeTls>>; 3]) {
    let both = [new, old];
    let (a, tls_a) = start_node("a", node_tls(new, "a", HOUR, &both));
    let (b, tls_b) = start_node("b", node_tls(old, "b", HOUR, &both));
    let (c, tls_c) = start_node("c", node_tls(new, "c", HOUR, &both));
    let mirror = start_mirror().await;
    for node in [&b, &c] {
        let echo = here("echo", FunctionPolicy::default(), &[mirror]);
        node.publish(&[], vec![echo]);
    }
    a.publish(&[&b, &c], vec![echo_on(&[&b])]);
    ([a, b, c], [tls_a, tls_b, tls_c])
}

#[tokio::test]
async fn connections_to_a_node_of_a_removed_root_carry_no_more_calls() {
    let (old, new) = (new_authority(), new_authority());
    let ([a, b, c], [tls_a, ..]) = start_with_roots(&old, &new).await;
    let mut client = KeptClient::connect(a.gateway.public).await;
    client.get_until_kept("/function/echo").await;
    let next = renewed(&tls_a.borrow(), &new, "a");
    let caller = a.gateway.node_caller.as_ref().unwrap();
    caller.send_replace(next.caller_config().clone());
    wait_refused(&mut client, &a, [&b, &c]).await;
}

#[tokio::test]
async fn connections_from_a_node_of_a_removed_root_carry_no_more_calls() {
    let (old, new) = (new_authority(), new_authority());
    let ([a, b, c], [_, tls_b, _]) = start_with_roots(&old, &new).await;
    let mut client = KeptClient::connect(a.gateway.public).await;
    client.get_until_kept("/function/echo").await;
    let next = renewed(&tls_b.borrow(), &old, "b");
    tls_b.send_replace(next.into());
    wait_refused(&mut client, &a, [&b, &c]).await;
}

/// Starts an instance that never answers requests for `/stuck`, which it reports.
async fn start_stuck() -> (std::net::SocketAddr, mpsc::UnboundedReceiver<()>) {
    let (sender, stuck) = mpsc::unbounded_channel();
    let addr = start_instance(move |request: Request<Incoming>| {
        let sender = sender.clone();
        async move {
            if request.uri().path() == "/stuck" {
                sender.send(()).unwrap();
                std::future::pending::<()>().await;
            }
            Response::new(full_body("ok"))
        }
    });
    (addr.await, stuck)
}

#[tokio::test]
async fn the_end_of_a_node_ends_the_call_on_its_silent_connection() {
    let authority = new_authority();
    let [a, b, c] = ["a", "b", "c"].map(|name| TestNode::with_kept_tls(&authority, name));
    let (instance, mut stuck) = start_stuck().await;
    for node in [&b, &c] {
        let echo = here("echo", FunctionPolicy::default(), &[instance]);
        node.publish(&[], vec![echo]);
    }
    a.publish(&[&b, &c], vec![echo_on(&[&b])]);
    let mut client = KeptClient::connect(a.gateway.public).await;
    client.get_until_kept("/function/echo").await;
    client.send("/function/echo/stuck", "").await;
    within(stuck.recv()).await.unwrap();
    // The process of b lives, and its kernel acknowledges all bytes.
    a.publish(&[&c], vec![echo_on(&[&c])]);
    let lost = client.receive().await;
    assert_eq!(
        (lost.status(), lost.field("x-nearpath-reason")),
        (502, "instance_died"),
        "{lost:?}"
    );
    assert!(lost.body.contains("node b"), "{lost:?}");
    let next = client.get("/function/echo").await;
    assert_eq!((next.status(), &*next.body), (200, "ok"));
    let lines = a.gateway.log.parse_lines();
    let is_lost = |line: &&serde_json::Value| line["status"] == 502;
    assert_eq!(lines.iter().find(is_lost).unwrap()["via"], "tls");
}

#[tokio::test]
async fn a_refused_call_is_not_repeated_for_a_caller_that_has_left() {
    let authority = new_authority();
    let [a, b, c] = ["a", "b", "c"].map(|name| TestNode::with_kept_tls(&authority, name));
    let (mirror, blocked) = (start_mirror().await, start_blocked_instance().await);
    let echo = |ready: &[_]| here("echo", FunctionPolicy::default(), ready);
    b.publish(&[], vec![echo(&[mirror])]);
    c.publish(&[], vec![echo(&[blocked.addr])]);
    a.publish(&[&b, &c], vec![echo_on(&[&b])]);
    let mut client = KeptClient::connect(a.gateway.public).await;
    client.get_until_kept("/function/echo").await;
    // Node b does not run it any more, which a does not know yet. It seems to have less load than c.
    b.publish(&[], vec![echo_on(&[])]);
    let with_load = |node: &TestNode, requests| RemoteInstances {
        node: node.peer(),
        load: FunctionLoad { ready: 1, requests },
    };
    let to_both = FunctionRoute {
        remotes: vec![with_load(&b, 0), with_load(&c, 100)],
        ..echo_on(&[])
    };
    a.publish(&[&b, &c], vec![to_both]);
    client.send("/function/echo/refused", "").await;
    blocked.wait_for_requests(1).await;
    drop(client);
    let is_refused = |line: &serde_json::Value| line["path"] == "/function/echo/refused";
    eventually("the call has ended at a", async || {
        let lines = a.gateway.log.parse_lines();
        let mut calls = lines.iter().filter(|line| is_refused(line));
        calls.any(|line| line["reason"] == "caller_gone")
    })
    .await;
    eventually("the call has ended at c", async || {
        let idle = r#"nearpath_inflight{function_name="echo.openfaas-fn"} 0"#;
        c.gateway.encode_metrics().contains(idle)
    })
    .await;
}
