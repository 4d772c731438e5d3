//! Calls of plain HTTP functions to `http://gateway:8080/function/…`: the gateway listens inside their
//! instances, and calls the own port of other plain functions.

use std::path::Path;

use http::{Method, Request};
use http_body_util::Full;
use nearpath_testkit::{eventually, within};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::shm::metric_value;
use crate::test_server::{TestResponse, TestServer, send_request};

/// A function on Python's own HTTP server, in the chain `shop`.
fn http_caller(server: &TestServer, name: &str, calls: &str) -> Value {
    let folder = server.data_dir.join("plain");
    if !folder.exists() {
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("handler.py"), include_str!("pickup.py")).unwrap();
    }
    json!({
        "service": name,
        "image": format!("file://{}", folder.display()),
        "envProcess": "python3 handler.py",
        "envVars": { "mode": "http", "upstream_url": "http://127.0.0.1:5000" },
        "annotations": { "nearpath.io/chain": "shop", "nearpath.io/calls": calls },
    })
}

/// Sends a request to `first` that returns its path header.
async fn ask_first(server: &TestServer, path: &str, body: impl Into<bytes::Bytes>) -> TestResponse {
    let request = Request::builder()
        .method(Method::POST)
        .uri(format!("/function/first/{path}"));
    let request = request
        .header("host", "localhost")
        .header("x-nearpath-path", "?");
    within(send_request(
        server.addr,
        request.body(Full::new(body.into())).unwrap(),
    ))
    .await
    .unwrap()
}

/// Response that `first` got for its own request.
async fn call_json(server: &TestServer, path: &str, body: impl Into<bytes::Bytes>) -> Value {
    let answer = ask_first(server, path, body).await;
    assert_eq!(answer.status(), 203, "{:?}", answer.body());
    serde_json::from_slice(answer.body()).unwrap()
}

fn path_of(answer: &TestResponse) -> &str {
    answer.headers()["x-nearpath-path"].to_str().unwrap()
}

/// Path of a plain call to a plain function of a chain, from outside and from inside.
const OWN_PORT: &str = "loopback; obstacle=own_port";

/// Deploys `first`, which may call `second` and the functions in `calls`, and waits until both are
/// ready and in memory.
async fn deploy_chain(server: &TestServer, second: &Value, calls: &str) {
    deploy_pair(server, second, calls).await;
    wait_near(server, "second").await;
}

async fn deploy_pair(server: &TestServer, second: &Value, calls: &str) {
    server.deploy_ready(second).await;
    server
        .deploy_ready(&http_caller(server, "first", calls))
        .await;
}

async fn wait_near(server: &TestServer, callee: &str) {
    wait_path(server, callee, OWN_PORT).await;
}

/// Waits until `first`, itself called at its own port, calls over this path.
async fn wait_path(server: &TestServer, callee: &str, path: &str) {
    eventually("the call takes its path", async || {
        let answer = ask_first(server, &format!("call/{callee}"), "").await;
        let near = answer.status() == 203 && path_of(&answer) == OWN_PORT;
        near && serde_json::from_slice::<Value>(answer.body()).unwrap()["headers"]["x-nearpath-path"] == path
    })
    .await;
}

/// Returns whether something listens on 127.0.0.2:8080 in the network of a process.
fn has_inner_listener(pid: i32) -> bool {
    let sockets = std::fs::read_to_string(format!("/proc/{pid}/net/tcp")).unwrap();
    sockets.contains(" 0200007F:1F90 00000000:0000 0A ")
}

#[tokio::test]
async fn plain_handlers_call_each_other_at_their_own_ports() {
    nearpath_testkit::need_root!();
    let server = TestServer::start().await;
    deploy_chain(&server, &http_caller(&server, "second", ""), "second").await;
    let report = call_json(&server, "call/second/a/b?c=d%20e", "some bytes").await;
    assert_eq!(
        (&report["status"], &report["headers"]["x-own"]),
        (&json!(203), &json!("kept"))
    );
    let second: Value = serde_json::from_str(report["body"].as_str().unwrap()).unwrap();
    assert_eq!(
        (&second["method"], &second["path"]),
        (&json!("POST"), &json!("/a/b?c=d%20e"))
    );
    assert_eq!(second["bytes"], 10);
    let paths = server.send_request(Method::GET, "/system/paths", "").await;
    let paths: Value = serde_json::from_slice(paths.body()).unwrap();
    let of = |caller: &str| {
        let is = |path: &&Value| path["caller"] == caller && path["callee"] == "second.openfaas-fn";
        let path = paths.as_array().unwrap().iter().find(is).unwrap();
        (path["path"].clone(), path["obstacle"].clone())
    };
    for caller in ["gateway", "first.openfaas-fn"] {
        assert_eq!(
            of(caller),
            (json!("loopback"), json!("own_port")),
            "{caller}"
        );
    }
    let listens =
        async |function: &str| has_inner_listener(server.instance_pids(function).await[0]);
    assert!(
        listens("first").await && !listens("second").await,
        "it calls no function"
    );
    // Calls without the path header take the fast path, and may not go through memory either.
    let through_memory = async || {
        let edge = r#"caller="gateway",callee="second.openfaas-fn""#;
        metric_value(&server, "nearpath_edge_requests_total", edge).await
    };
    let before = through_memory().await;
    for _ in 0..20 {
        let answer = server.send_request(Method::POST, "/function/second/x", "body");
        assert_eq!(answer.await.status(), 203);
    }
    assert_eq!(through_memory().await, before);
}

#[tokio::test]
async fn with_an_identity_calls_within_a_chain_go_through_memory() {
    nearpath_testkit::need_root!();
    let server = TestServer::start().await;
    let mut functions = [
        http_caller(&server, "second", ""),
        http_caller(&server, "first", "second"),
    ];
    for function in &mut functions {
        function["annotations"]["nearpath.io/transport"] = json!("quic");
        server.deploy_ready(function).await;
    }
    eventually("the watchdogs are in memory", async || {
        let report = call_json(&server, "call/second", "").await;
        report["headers"]["x-nearpath-path"] == "shm" && report["headers"]["x-served-by"] == "i2"
    })
    .await;
}

/// Headers that differ between calls and instances.
const VARYING_HEADERS: &[&str] = &[
    "x-start-time",
    "x-duration-seconds",
    "date",
    "x-served-by",
    "x-nearpath-path",
    "content-length",
];

#[tokio::test]
async fn the_path_is_not_visible_in_a_request_or_its_answer() {
    nearpath_testkit::need_root!();
    let server = TestServer::start().await;
    deploy_chain(&server, &http_caller(&server, "second", ""), "second").await;
    let mut seen = Vec::new();
    for gateway in ["call", "direct"] {
        let report = call_json(&server, &format!("{gateway}/second/x"), "abc").await;
        let second: Value = serde_json::from_str(report["body"].as_str().unwrap()).unwrap();
        let question: Vec<(String, String)> =
            serde_json::from_value(second["headers"].clone()).unwrap();
        let answered: std::collections::BTreeMap<String, String> =
            serde_json::from_value(report["headers"].clone()).unwrap();
        let plain = |(name, value): (String, String)| {
            let value = value.replace("10.62.0.1:8080", "gateway:8080");
            (!VARYING_HEADERS.contains(&&*name)).then_some((name, value))
        };
        let question: Vec<_> = question.into_iter().filter_map(plain).collect();
        let answered: Vec<_> = answered.into_iter().filter_map(plain).collect();
        seen.push((question, answered));
    }
    assert_eq!(seen[0], seen[1]);
    assert!(
        seen[0]
            .0
            .iter()
            .any(|(name, value)| name == "x-call-id" && value == "one-id"),
        "{:?}",
        seen[0]
    );
}

#[tokio::test]
async fn calls_without_a_ring_go_through_the_gateway() {
    nearpath_testkit::need_root!();
    let server = TestServer::start().await;
    let mut outside = http_caller(&server, "outside", "");
    outside["annotations"] = json!({});
    for other in [&outside, &http_caller(&server, "stranger", "")] {
        server.deploy_ready(other).await;
    }
    deploy_chain(
        &server,
        &http_caller(&server, "second", ""),
        "second,outside",
    )
    .await;
    let there = call_json(&server, "call/outside", "").await;
    assert_eq!(
        (&there["status"], &there["headers"]["x-nearpath-path"]),
        (&json!(203), &json!("loopback; obstacle=no_domain"))
    );
    for name in ["stranger", "nobody", "not%20a%20name"] {
        let [picked, direct] = [
            call_json(&server, &format!("call/{name}"), "").await,
            call_json(&server, &format!("direct/{name}"), "").await,
        ];
        assert_eq!(
            (&picked["status"], &picked["body"]),
            (&direct["status"], &direct["body"]),
            "{name}"
        );
        assert_eq!(
            picked["headers"]["x-nearpath-reason"], direct["headers"]["x-nearpath-reason"],
            "{name}"
        );
        assert!(picked["status"].as_u64().unwrap() >= 400, "{picked}");
    }
}

#[tokio::test]
async fn a_sleeping_callee_is_woken() {
    nearpath_testkit::need_root!();
    let server = TestServer::start().await;
    deploy_chain(&server, &http_caller(&server, "second", ""), "second").await;
    server.scale("second", 0).await;
    server.wait_available("second", 0).await;
    assert_eq!(call_json(&server, "call/second", "").await["status"], 203);
    wait_near(&server, "second").await;
}

#[tokio::test]
async fn a_callee_that_dies_is_an_error_and_then_another() {
    nearpath_testkit::need_root!();
    let server = TestServer::start().await;
    deploy_chain(&server, &http_caller(&server, "second", ""), "second").await;
    let victim = server.instance_pids("second").await[0];
    let open = call_json(&server, "call/second/sleep/50", "");
    let kill = async {
        eventually("second has the call", async || wait_asleep(victim)).await;
        kill_process(Pid::from_raw(victim).unwrap(), Signal::KILL).unwrap();
    };
    let (broken, ()) = tokio::join!(open, kill);
    assert_eq!(
        (&broken["status"], &broken["headers"]["x-nearpath-reason"]),
        (&json!(502), &json!("instance_died"))
    );
    eventually("it is dead", async || {
        !Path::new(&format!("/proc/{victim}")).exists()
    })
    .await;
    wait_near(&server, "second").await;
}

/// Returns true while the handler of this instance runs, which it records in a file.
fn wait_asleep(watchdog: i32) -> bool {
    Path::new(&format!("/proc/{watchdog}/root/tmp/asleep")).exists()
}

#[tokio::test]
async fn upgrades_streams_and_large_bodies_pass() {
    nearpath_testkit::need_root!();
    let server = TestServer::start().await;
    deploy_chain(&server, &http_caller(&server, "second", ""), "second").await;
    assert_eq!(call_json(&server, "chat/second", "").await["said"], "HELLO");
    let large = vec![b'x'; 5 << 20];
    let back = call_json(&server, "call/second", large.clone()).await;
    let second: Value = serde_json::from_str(back["body"].as_str().unwrap()).unwrap();
    assert_eq!(second["bytes"], large.len());
    let just = call_json(&server, "call/second", vec![b'y'; 1 << 20]).await;
    assert_eq!(
        just["headers"]["x-nearpath-path"], "shm",
        "a body in parts takes the pipeline"
    );
    let second: Value = serde_json::from_str(just["body"].as_str().unwrap()).unwrap();
    assert_eq!(second["bytes"], 1 << 20);
    let events = call_json(&server, "call/second/events", "").await;
    assert_eq!(
        events["headers"]["x-nearpath-path"], OWN_PORT,
        "answers are streamed"
    );
    assert_eq!(events["body"], "data: 0\n\ndata: 1\n\ndata: 2\n\n");
    let answer = call_json(&server, &format!("call/second/large/{}", 5 << 20), "").await;
    assert_eq!(answer["headers"]["x-nearpath-path"], OWN_PORT);
    assert_eq!(
        answer["body"].as_str().unwrap().len(),
        (5 << 20) + 2,
        "in quotes"
    );
}

#[tokio::test]
async fn a_limit_of_the_callee_holds_for_calls_from_inside() {
    nearpath_testkit::need_root!();
    let server = TestServer::start().await;
    let mut second = http_caller(&server, "second", "");
    second["annotations"]["nearpath.io/max-inflight"] = json!("1");
    second["annotations"]["nearpath.io/max-body"] = json!("1Ki");
    deploy_pair(&server, &second, "second").await;
    wait_path(&server, "second", "shm").await; // to the watchdog, which counts all calls
    let calls = (0..4).map(|_| call_json(&server, "call/second/sleep/0.05", ""));
    for report in futures_util::future::join_all(calls).await {
        assert_eq!(
            report["status"], 203,
            "those that find it full wait at the gateway: {report}"
        );
    }
    let refused = call_json(&server, "call/second", vec![b'x'; 2000]).await;
    assert_eq!(
        (&refused["status"], &refused["headers"]["x-nearpath-reason"]),
        (&json!(413), &json!("body_too_large"))
    );
}

#[tokio::test]
async fn a_call_is_finished_before_an_instance_stops() {
    nearpath_testkit::need_root!();
    let server = TestServer::start().await;
    deploy_chain(&server, &http_caller(&server, "second", ""), "second").await;
    let watchdog = server.instance_pids("second").await[0];
    let open = call_json(&server, "call/second/sleep/1", "");
    let stop = async {
        eventually("second has the call", async || wait_asleep(watchdog)).await;
        server.scale("second", 0).await;
    };
    let (report, ()) = tokio::join!(open, stop);
    assert_eq!(
        (&report["status"], &report["headers"]["x-nearpath-path"]),
        (&json!(203), &json!(OWN_PORT))
    );
}

#[tokio::test]
async fn a_request_that_the_drain_waits_for_may_call_others() {
    nearpath_testkit::need_root!();
    let server = TestServer::start().await;
    deploy_chain(&server, &http_caller(&server, "second", ""), "second").await;
    let watchdog = server.instance_pids("first").await[0];
    // More requests than threads: each thread has some.
    let open = (0..8).map(|_| call_json(&server, "later/second", ""));
    let stop = async {
        eventually("first has a call", async || wait_asleep(watchdog)).await;
        kill_process(Pid::from_raw(server.pid() as i32).unwrap(), Signal::TERM).unwrap();
    };
    let (reports, ()) = tokio::join!(futures_util::future::join_all(open), stop);
    for report in reports {
        // Eight at once open no eight connections to the own port: some take the watchdog. A function
        // that called itself would name no path.
        let is_gateways = report["headers"]["x-nearpath-path"].is_string();
        assert!(report["status"] == 203 && is_gateways, "{report}");
    }
}

#[tokio::test]
async fn a_tenant_may_turn_shared_memory_off() {
    nearpath_testkit::need_root!();
    let server = TestServer::start().await;
    let mut first = http_caller(&server, "first", "second");
    first["envVars"]["shared_memory"] = json!("false");
    server.deploy_ready(&first).await;
    server
        .deploy_ready(&http_caller(&server, "second", ""))
        .await;
    eventually("second, which came later, is near", async || {
        let report = call_json(&server, "call/second", "").await;
        report["headers"]["x-nearpath-path"] == OWN_PORT
    })
    .await;
    let answer = ask_first(&server, "call/second", "").await;
    assert_eq!(
        (answer.status().as_u16(), path_of(&answer)),
        (203, "loopback; obstacle=no_endpoint")
    );
    let report: Value = serde_json::from_slice(answer.body()).unwrap();
    assert_eq!(
        report["headers"]["x-served-by"],
        answer.headers()["x-served-by"].to_str().unwrap(),
        "the gateway did"
    );
}
