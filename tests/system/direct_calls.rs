//! Direct calls between functions over QUIC with `nearpath up --forward tc`, recognised by the path
//! header.

use std::path::Path;

use http::StatusCode;
use nearpath_testkit::{eventually, need_root};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::test_server::{TestServer, http_function, need_forwarding};

/// Calls the function in its body; responds with the path of the call and its response.
const RELAY_BODY: &str = r#"request = urllib.request.Request("http://gateway:8080/function/" + body.decode(), data=b"from inside", headers={"X-Nearpath-Path": "tell"})
try:
    reply = urllib.request.urlopen(request)
except urllib.error.HTTPError as error:
    reply = error
with reply:
    self.answer(reply.status, (reply.headers.get("X-Nearpath-Path") or reply.headers.get("X-Nearpath-Reason") or "none").encode() + b" " + reply.read())"#;

const MIRROR_BODY: &str = "self.answer(200, body)";

/// Records in a file that it was called, and never responds.
const STUCK_BODY: &str = r#"open("/tmp/reached", "w").close()
time.sleep(1000)"#;

/// Probes addresses over TCP and UDP; responds with the open ones.
const CONNECT_BODY: &str = r#"import socket
said = []
try:
    socket.create_connection((body.decode(), 8080), 1).close()
    said.append("tcp")
except OSError:
    pass
self.answer(200, b"open: " + " ".join(said).encode())"#;

fn quic_function(folder: &Path, name: &str, body: &str, calls: &str) -> Value {
    let mut function = http_function(folder, name, body);
    function["annotations"] =
        json!({ "nearpath.io/transport": "quic", "nearpath.io/calls": calls });
    function
}

async fn relay_call(
    server: &TestServer,
    caller: &str,
    callee: &'static str,
) -> (StatusCode, String) {
    let answer = server.call_function(caller, callee).await;
    (
        answer.status(),
        String::from_utf8(answer.body().to_vec()).unwrap(),
    )
}

/// Calls until the path is direct: the caller may not know a ready instance yet. Returns the calls.
async fn wait_direct(server: &TestServer, caller: &str, callee: &'static str) -> u64 {
    let mut calls = 0;
    eventually("it goes directly", async || {
        calls += 1;
        relay_call(server, caller, callee).await.1 == "quic from inside"
    })
    .await;
    calls
}

/// Number of calls between two functions, over all paths.
async fn edge_requests(server: &TestServer, caller: &str, callee: &str) -> u64 {
    let edges: Value = serde_json::from_slice(
        server
            .send_request(http::Method::GET, "/system/edges", "")
            .await
            .body(),
    )
    .unwrap();
    let named = |edge: &&Value| {
        edge["caller"] == format!("{caller}.openfaas-fn")
            && edge["callee"] == format!("{callee}.openfaas-fn")
    };
    edges
        .as_array()
        .unwrap()
        .iter()
        .find(named)
        .map_or(0, |edge| edge["requests"].as_u64().unwrap())
}

async fn start_pair(folder: &Path, options: &[&str]) -> TestServer {
    let server = TestServer::start_in(folder, options).await;
    server
        .deploy_ready(&quic_function(folder, "b", MIRROR_BODY, ""))
        .await;
    server
        .deploy_ready(&quic_function(folder, "a", RELAY_BODY, "b"))
        .await;
    server
}

#[tokio::test]
async fn a_declared_edge_goes_directly_and_an_undeclared_one_nowhere() {
    need_forwarding!();
    let folder = tempfile::tempdir().unwrap();
    let server = start_pair(folder.path(), &["--forward", "tc"]).await;
    let calls = wait_direct(&server, "a", "b").await;
    eventually(
        "each is counted once, by the gateway or its caller",
        async || edge_requests(&server, "a", "b").await == calls,
    )
    .await;
    let paths: Value = serde_json::from_slice(
        server
            .send_request(http::Method::GET, "/system/paths", "")
            .await
            .body(),
    )
    .unwrap();
    let report = paths
        .as_array()
        .unwrap()
        .iter()
        .find(|path| path["caller"] == "a.openfaas-fn")
        .unwrap();
    assert_eq!(report["path"], "quic", "{report}");
    for _ in 0..3 {
        assert_eq!(
            relay_call(&server, "a", "b").await,
            (StatusCode::OK, "quic from inside".to_owned()),
            "{}",
            server.log()
        );
    }
    eventually("each is counted once", async || {
        edge_requests(&server, "a", "b").await == calls + 3
    })
    .await;
    let received = server.describe("b").await["invocationCount"]
        .as_f64()
        .unwrap();
    assert!(
        received >= (calls + 3) as f64,
        "a function's calls are those of its edges, too: {received}"
    );
    server
        .deploy_ready(&quic_function(folder.path(), "c", RELAY_BODY, ""))
        .await;
    let (status, text) = relay_call(&server, "c", "b").await;
    assert_eq!(status, StatusCode::FORBIDDEN, "{text}");
}

#[tokio::test]
async fn a_path_between_watchdogs_is_closed_to_everybody_else() {
    need_forwarding!();
    let folder = tempfile::tempdir().unwrap();
    let server = start_pair(folder.path(), &["--forward", "tc"]).await;
    server
        .deploy_ready(&quic_function(folder.path(), "knock", CONNECT_BODY, "b"))
        .await;
    wait_direct(&server, "a", "b").await;
    let addr = server.describe("b").await["instances"][0]["addr"]
        .as_str()
        .unwrap()
        .to_owned();
    let at: &'static str = Box::leak(addr.split_once(':').unwrap().0.to_owned().into_boxed_str());
    assert_eq!(
        relay_call(&server, "knock", "10.62.0.1").await.1,
        "open: tcp",
        "the control: the gateway is there"
    );
    assert_eq!(
        relay_call(&server, "knock", at).await.1,
        "open: ",
        "a declared edge leads to the watchdog, over QUIC"
    );
}

#[tokio::test]
async fn the_gateway_wakes_a_sleeping_callee_and_then_it_goes_directly() {
    need_forwarding!();
    let folder = tempfile::tempdir().unwrap();
    let server = start_pair(folder.path(), &["--forward", "tc"]).await;
    server.scale("b", 0).await;
    server.wait_available("b", 0).await;
    let (status, text) = relay_call(&server, "a", "b").await;
    assert_eq!(
        (status, text.ends_with("from inside")),
        (StatusCode::OK, true),
        "{text}\n{}",
        server.log()
    );
    wait_direct(&server, "a", "b").await;
}

#[tokio::test]
async fn a_callee_that_is_killed_in_a_call_is_one_clear_error() {
    need_forwarding!();
    let folder = tempfile::tempdir().unwrap();
    let server = start_pair(folder.path(), &["--forward", "tc"]).await;
    wait_direct(&server, "a", "b").await;
    server
        .deploy_ready(&quic_function(folder.path(), "stuck", STUCK_BODY, ""))
        .await;
    server
        .deploy_ready(&quic_function(folder.path(), "caller", RELAY_BODY, "stuck"))
        .await;
    let pid = server.instance_pids("stuck").await[0];
    let reached = format!("/proc/{pid}/root/tmp/reached");
    let killing = async {
        eventually("it is reached", async || Path::new(&reached).exists()).await;
        kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    };
    let ((status, text), ()) = tokio::join!(relay_call(&server, "caller", "stuck"), killing);
    assert_eq!(
        (status, text.starts_with("instance_died")),
        (StatusCode::BAD_GATEWAY, true),
        "{text}"
    );
}

#[tokio::test]
async fn without_a_path_between_instances_calls_go_through_the_gateway() {
    need_root!();
    let folder = tempfile::tempdir().unwrap();
    let server = start_pair(folder.path(), &[]).await;
    for _ in 0..2 {
        let (status, text) = relay_call(&server, "a", "b").await;
        assert_eq!(
            (status, &*text),
            (StatusCode::OK, "quic; obstacle=no_domain from inside"),
            "{}",
            server.log()
        );
    }
    eventually("the gateway counts what it carries", async || {
        edge_requests(&server, "a", "b").await == 2
    })
    .await;
}
