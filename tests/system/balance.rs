//! Edges with `balance: connection`: HTTP by name goes straight to the callee's own server.

use std::collections::BTreeMap;

use http::Method;
use nearpath_testkit::{eventually, need_root};
use serde_json::{Value, json};

use crate::test_server::{TestServer, http_function};
use crate::virtual_addresses::{caller, run};

/// Responds with its own address, and with the caller that the gateway names.
const WHERE_BODY: &str = r#"import json
self.answer(200, json.dumps([*self.connection.getsockname(), self.headers.get("X-Nearpath-Caller")]).encode())"#;

/// Calls twelve times, each time over a new connection.
const TWELVE_CALLS: &str =
    "import json\nresult = [json.loads(get('http://mirror:8080/')) for _ in range(12)]";
const ONE_CALL: &str = "import json\nresult = json.loads(get('http://mirror/'))";

/// Deploys `mirror`, and `front` which calls it.
async fn start(mirror: impl FnOnce(&mut Value)) -> TestServer {
    let server = TestServer::start().await;
    let mut function = http_function(&server.data_dir, "mirror", WHERE_BODY);
    mirror(&mut function);
    server.deploy_ready(&function).await;
    deploy_front(&server, "mirror balance=connection").await;
    server
}

async fn deploy_front(server: &TestServer, calls: &str) {
    server.deploy_ready(&caller(server, "front", calls)).await;
}

/// Returns how many connections the kernel has counted from `front` to `mirror`.
async fn connections(server: &TestServer) -> u64 {
    let edges = server.send_request(Method::GET, "/system/edges", "").await;
    let edges: Value = serde_json::from_slice(edges.body()).unwrap();
    let mut rows = edges.as_array().unwrap().iter();
    let row = rows.find(|row| row["callee"] == "mirror.openfaas-fn");
    row.and_then(|row| row["connections"].as_u64())
        .unwrap_or_default()
}

#[tokio::test]
async fn connections_go_to_all_instances_in_turn() {
    need_root!();
    let server = start(|_| ()).await;
    server.scale("mirror", 3).await;
    server.wait_available("mirror", 3).await;
    let answers = run(&server, "front", TWELVE_CALLS).await;
    let mut calls_of = BTreeMap::new();
    // The server names its own address, so no counter of ours is trusted.
    for answer in answers.as_array().unwrap() {
        let address = answer[0].as_str().unwrap();
        assert!(address.starts_with("10.62."), "{answers}");
        assert_eq!(answer[1], 8080, "{answers}");
        assert_eq!(answer[2], Value::Null, "the gateway named a caller");
        *calls_of.entry(address).or_insert(0) += 1;
    }
    // In turn means evenly, from the first round on.
    let counts: Vec<_> = calls_of.into_values().collect();
    assert_eq!(counts, [4, 4, 4], "{answers}");
    // Each call opened a connection: HTTP of the standard library keeps none.
    assert_eq!(connections(&server).await, 12);
}

#[tokio::test]
async fn requests_are_balanced_by_the_gateway_without_the_setting() {
    need_root!();
    let server = start(|_| ()).await;
    assert_eq!(run(&server, "front", ONE_CALL).await[2], Value::Null);
    for (calls, gateway) in [
        ("mirror", json!("front.openfaas-fn")),
        ("mirror balance=connection", Value::Null),
        ("glass=mirror balance=request", json!("front.openfaas-fn")),
    ] {
        // Each deployment starts a caller with the new edges.
        deploy_front(&server, calls).await;
        let answer = run(&server, "front", ONE_CALL).await;
        assert_eq!(answer[2], gateway, "{calls}: {answer}");
    }
}

#[tokio::test]
async fn the_gateway_wakes_the_callee_and_later_connections_are_straight() {
    need_root!();
    let server = start(|_| ()).await;
    server.scale("mirror", 0).await;
    server.wait_available("mirror", 0).await;
    // Only the gateway wakes functions.
    let woken = run(&server, "front", ONE_CALL).await;
    assert_eq!(woken[2], "front.openfaas-fn", "{woken}");
    assert_eq!(run(&server, "front", ONE_CALL).await[2], Value::Null);
}

/// Settings that the watchdog enforces hold for all calls of a function.
#[tokio::test]
async fn functions_that_need_their_watchdog_keep_it() {
    need_root!();
    for (key, value) in [
        ("max_inflight", "2"),
        ("upstream_url", "http://127.0.0.1:5000/base"),
    ] {
        // Each setting has a server of its own: a deployment keeps the variables of the last one.
        let server = start(|mirror| mirror["envVars"][key] = value.into()).await;
        let answer = run(&server, "front", ONE_CALL).await;
        assert_eq!(answer[2], "front.openfaas-fn", "{key}: {answer}");
    }
}

/// A kept connection lives as long as its edge.
#[tokio::test]
async fn straight_connections_end_with_their_edge() {
    need_root!();
    let server = start(|_| ()).await;
    let hold = r#"import http.client, time
connection = http.client.HTTPConnection("mirror", timeout=20)
end, result = time.time() + 30, 0
while time.time() < end:
    connection.request("GET", "/")
    connection.getresponse().read()
    result += 1
    time.sleep(0.01)"#;
    // Not before its first request: an unused connection could end for another reason.
    let removal = async {
        eventually("the connection is open", async || {
            connections(&server).await == 1
        })
        .await;
        deploy_front(&server, "absent").await;
    };
    let (end, ()) = tokio::join!(run(&server, "front", hold), removal);
    assert_eq!(end, "ECONNABORTED", "{}", server.log());
}
