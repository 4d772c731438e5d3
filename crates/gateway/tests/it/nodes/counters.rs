//! Records of calls between nodes: metrics of all nodes add up, and access logs name both nodes.

use nearpath_ca::Authority;
use nearpath_testkit::eventually;
use nearpath_types::{FunctionPolicy, FunctionRoute};

use super::fixture::{TestNode, caller, elsewhere, here, new_authority, remotes};
use super::permission::{FRONT, call_as_instance, calling, front_at_b};
use crate::fixture::{start_blocked_instance, start_mirror};

/// Starts a node. Nodes differ in the path of their calls.
type StartNode = fn(&Authority, &'static str) -> TestNode;

/// Calls over QUIC, and over kept TLS connections.
const STARTS: [StartNode; 2] = [TestNode::start, TestNode::with_kept_tls];
/// Number of calls.
const CALLS: u64 = 20;

/// Starts a node `a` without instances, and `b` with one. Clients call `a`.
async fn call_across(start: StartNode) -> [TestNode; 2] {
    let authority = new_authority();
    let [a, b] = ["a", "b"].map(|name| start(&authority, name));
    let policy = FunctionPolicy::default;
    b.publish(&[], vec![here("echo", policy(), &[start_mirror().await])]);
    a.publish(&[&b], vec![elsewhere("echo", policy(), &[&b])]);
    for _ in 0..CALLS {
        assert_eq!(a.get("/function/echo").await.status, 200);
    }
    for node in [&a, &b] {
        eventually("all calls have ended", async || {
            let lines = node.gateway.log.parse_lines();
            let calls = lines
                .iter()
                .filter(|line| line["function"] == "echo.openfaas-fn");
            calls.count() as u64 == CALLS
        })
        .await;
    }
    [a, b]
}

#[tokio::test]
async fn a_call_counts_at_the_node_that_the_client_called() {
    for start in STARTS {
        check_counters(call_across(start).await);
    }
}

fn check_counters([a, b]: [TestNode; 2]) {
    let id = "echo".parse().unwrap();
    let counted = |node: &TestNode| node.gateway.gateway.invocations(&id);
    assert_eq!((counted(&a), counted(&b)), (CALLS, 0));
    // Placement compares answered calls of the node with the instances.
    assert_eq!(b.gateway.gateway.functions().answered(&id), CALLS);
    let echo = r#"function_name="echo.openfaas-fn""#;
    let (at_a, at_b) = (a.gateway.encode_metrics(), b.gateway.encode_metrics());
    let code = "code=\"200\"";
    for (metrics, wanted) in [
        (
            &at_a,
            format!("gateway_function_invocation_total{{{echo},{code}}} {CALLS}"),
        ),
        (
            &at_a,
            format!("gateway_function_invocation_started{{{echo}}} {CALLS}"),
        ),
        (&at_a, format!("nearpath_node_calls_inflight{{{echo}}} 0")),
        (
            &at_b,
            format!("gateway_function_invocation_started{{{echo}}} 0"),
        ),
        (
            &at_b,
            format!("nearpath_node_calls_total{{node=\"a\",{code}}} {CALLS}"),
        ),
        (
            &at_b,
            format!("nearpath_node_calls_seconds_count{{{echo},{code}}} {CALLS}"),
        ),
        (&at_b, format!("nearpath_inflight{{{echo}}} 0")),
    ] {
        assert!(metrics.contains(&wanted), "{wanted} in\n{metrics}");
    }
    let counts_twice = |line: &str| line.starts_with("gateway_function_invocation_total{");
    assert!(!at_b.lines().any(counts_twice), "{at_b}");
    assert!(!at_a.contains("nearpath_node_calls_total{"), "{at_a}");
}

#[tokio::test]
async fn a_call_along_an_edge_counts_at_the_callers_node() {
    for start in STARTS {
        let authority = new_authority();
        let [a, b] = ["a", "b"].map(|name| start(&authority, name));
        let calls_echo = || calling(&["echo"], &["a"]);
        let echo = here("echo", FunctionPolicy::default(), &[start_mirror().await]);
        b.publish(&[], [front_at_b(calls_echo()), vec![echo]].concat());
        let remote = elsewhere("echo", FunctionPolicy::default(), &[&b]);
        let front = caller("front", calls_echo(), (FRONT, 1).into());
        a.publish(&[&b], vec![front, remote]);
        for _ in 0..CALLS {
            assert_eq!(call_as_instance(&a, "/function/echo").await.status, 200);
        }
        let rows = |node: &TestNode| node.gateway.gateway.functions().edge_calls();
        eventually(
            "all calls have ended",
            async || matches!(&rows(&a)[..], [row] if row.requests == CALLS && row.in_flight == 0),
        )
        .await;
        assert_eq!(
            (&*rows(&a)[0].caller, rows(&a)[0].failed),
            ("front.openfaas-fn", 0)
        );
        // Its own record shows that b has served them: it counts them for no edge.
        eventually("b has recorded them", async || {
            let lines = b.gateway.log.parse_lines();
            let by_front = lines
                .iter()
                .filter(|line| line["caller"] == "front.openfaas-fn");
            by_front.count() as u64 == CALLS
        })
        .await;
        assert_eq!(rows(&b), []);
    }
}

#[tokio::test]
async fn access_logs_name_the_other_node_and_the_instance_with_its_node() {
    for (start, path) in STARTS.into_iter().zip(["quic", "tls"]) {
        check_access_logs(call_across(start).await, path);
    }
}

/// Checks the last line of both logs; some call by `path` is in that of `a`.
fn check_access_logs([a, b]: [TestNode; 2], path: &str) {
    let lines = a.gateway.log.parse_lines();
    assert!(lines.iter().any(|line| line["via"] == path), "{lines:?}");
    let call = |node: &TestNode| {
        let lines = node.gateway.log.parse_lines();
        let is_call = |line: &&serde_json::Value| line["function"] == "echo.openfaas-fn";
        lines.iter().rfind(is_call).unwrap().clone()
    };
    let (at_a, at_b) = (call(&a), call(&b));
    assert_eq!(
        (&at_a["node"], &at_a["from_node"]),
        (&"b".into(), &serde_json::Value::Null)
    );
    assert_eq!(
        (&at_b["node"], &at_b["from_node"]),
        (&serde_json::Value::Null, &"a".into())
    );
    let instance = at_b["instance"].as_str().unwrap();
    assert!(instance.starts_with("b/i"), "{at_b}");
}

#[tokio::test]
async fn a_request_at_another_node_is_load_of_that_node_alone() {
    let authority = new_authority();
    let [a, b] = ["a", "b"].map(|name| TestNode::start(&authority, name));
    let limit = FunctionPolicy {
        max_inflight: Some(1),
        ..FunctionPolicy::default()
    };
    let (at_a, at_b) = (
        start_blocked_instance().await,
        start_blocked_instance().await,
    );
    b.publish(&[], vec![here("echo", limit.clone(), &[at_b.addr])]);
    let echo = FunctionRoute {
        remotes: remotes(&[&b], 1),
        ..here("echo", limit, &[at_a.addr])
    };
    a.publish(&[&b], vec![echo]);
    let call_both = async {
        // The second one would wait at `a`, so it goes to `b`.
        tokio::join!(a.get("/function/echo"), async {
            at_a.wait_for_requests(1).await;
            a.get("/function/echo").await
        })
    };
    let observe = async {
        at_b.wait_for_requests(1).await;
        let load = |node: &TestNode| {
            let echo = node.gateway.gateway.functions().find_by_name("echo");
            echo.unwrap().local_requests()
        };
        assert_eq!((load(&a), load(&b)), (1, 1));
        at_a.permits.add_permits(1);
        at_b.permits.add_permits(1);
    };
    let ((first, second), ()) = tokio::join!(call_both, observe);
    assert_eq!((first.status, second.status), (200, 200));
}
