//! Calls from function to function over QUIC through `nearpath up --forward tc`, past the gateway: told apart by the header that their caller reads.

use std::path::Path;

use http::StatusCode;
use nearpath_testkit::{eventually, need_root};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::house::{House, http_function, need_forwarding};

/// Calls what it is told; answers with the path that the call took, and what came back.
const RELAY: &str = r#"request = urllib.request.Request("http://gateway:8080/function/" + body.decode(), data=b"from inside", headers={"X-Nearpath-Path": "tell"})
try:
    reply = urllib.request.urlopen(request)
except urllib.error.HTTPError as error:
    reply = error
with reply:
    self.answer(reply.status, (reply.headers.get("X-Nearpath-Path") or reply.headers.get("X-Nearpath-Reason") or "none").encode() + b" " + reply.read())"#;

const MIRROR: &str = "self.answer(200, body)";

/// Says in a file that it was reached, and never answers.
const STUCK: &str = r#"open("/tmp/reached", "w").close()
time.sleep(1000)"#;

/// Knocks over TCP and UDP at addresses; says whether anybody was there.
const KNOCK: &str = r#"import socket
said = []
try:
    socket.create_connection((body.decode(), 8080), 1).close()
    said.append("tcp")
except OSError:
    pass
self.answer(200, b"open: " + " ".join(said).encode())"#;

fn over_quic(folder: &Path, name: &str, body: &str, calls: &str) -> Value {
    let mut function = http_function(folder, name, body);
    function["annotations"] = json!({ "nearpath.io/transport": "quic", "nearpath.io/calls": calls });
    function
}

async fn relay(house: &House, caller: &str, callee: &'static str) -> (StatusCode, String) {
    let answer = house.call(caller, callee).await;
    (answer.status(), String::from_utf8(answer.body().to_vec()).unwrap())
}

/// Calls until the way is the direct one: the caller may not have heard yet of an instance that is ready.
async fn directly(house: &House, caller: &str, callee: &'static str) {
    eventually("it goes directly", async || relay(house, caller, callee).await.1 == "quic from inside").await;
}

/// Calls from one function to another that did not pass the gateway.
async fn counted(house: &House, caller: &str, callee: &str) -> u64 {
    let edges: Value = serde_json::from_slice(house.ask(http::Method::GET, "/system/edges", "").await.body()).unwrap();
    let named = |edge: &&Value| {
        edge["caller"] == format!("{caller}.openfaas-fn") && edge["callee"] == format!("{callee}.openfaas-fn")
    };
    edges.as_array().unwrap().iter().find(named).map_or(0, |edge| edge["requests"].as_u64().unwrap())
}

async fn pair(folder: &Path, options: &[&str]) -> House {
    let house = House::start_in(folder, options).await;
    house.deploy_ready(&over_quic(folder, "b", MIRROR, "")).await;
    house.deploy_ready(&over_quic(folder, "a", RELAY, "b")).await;
    house
}

#[tokio::test]
async fn a_declared_edge_goes_directly_and_an_undeclared_one_nowhere() {
    need_forwarding!();
    let folder = tempfile::tempdir().unwrap();
    let house = pair(folder.path(), &["--forward", "tc"]).await;
    directly(&house, "a", "b").await;
    eventually("it is counted", async || counted(&house, "a", "b").await > 0).await;
    let paths: Value = serde_json::from_slice(house.ask(http::Method::GET, "/system/paths", "").await.body()).unwrap();
    let told = paths.as_array().unwrap().iter().find(|path| path["caller"] == "a.openfaas-fn").unwrap();
    assert_eq!(told["path"], "quic", "{told}");
    let before = counted(&house, "a", "b").await;
    for _ in 0..3 {
        assert_eq!(relay(&house, "a", "b").await, (StatusCode::OK, "quic from inside".to_owned()), "{}", house.log());
    }
    eventually("each is counted once", async || counted(&house, "a", "b").await == before + 3).await;
    let calls = house.describe("b").await["invocationCount"].as_f64().unwrap();
    assert!(calls >= (before + 3) as f64, "a function's calls are those of its edges, too: {calls}");
    house.deploy_ready(&over_quic(folder.path(), "c", RELAY, "")).await;
    let (status, text) = relay(&house, "c", "b").await;
    assert_eq!(status, StatusCode::FORBIDDEN, "{text}");
}

#[tokio::test]
async fn a_way_between_watchdogs_is_none_for_anybody_else() {
    need_forwarding!();
    let folder = tempfile::tempdir().unwrap();
    let house = pair(folder.path(), &["--forward", "tc"]).await;
    house.deploy_ready(&over_quic(folder.path(), "knock", KNOCK, "b")).await;
    directly(&house, "a", "b").await;
    let addr = house.describe("b").await["instances"][0]["addr"].as_str().unwrap().to_owned();
    let at: &'static str = Box::leak(addr.split_once(':').unwrap().0.to_owned().into_boxed_str());
    assert_eq!(relay(&house, "knock", "10.62.0.1").await.1, "open: tcp", "the control: the gateway is there");
    assert_eq!(relay(&house, "knock", at).await.1, "open: ", "a declared edge leads to the watchdog, over QUIC");
}

#[tokio::test]
async fn the_gateway_wakes_a_sleeping_callee_and_then_it_goes_directly() {
    need_forwarding!();
    let folder = tempfile::tempdir().unwrap();
    let house = pair(folder.path(), &["--forward", "tc"]).await;
    house.scale("b", 0).await;
    house.until_available("b", 0).await;
    let (status, text) = relay(&house, "a", "b").await;
    assert_eq!((status, text.ends_with("from inside")), (StatusCode::OK, true), "{text}\n{}", house.log());
    directly(&house, "a", "b").await;
}

#[tokio::test]
async fn a_callee_that_is_killed_in_a_call_is_one_clear_error() {
    need_forwarding!();
    let folder = tempfile::tempdir().unwrap();
    let house = pair(folder.path(), &["--forward", "tc"]).await;
    directly(&house, "a", "b").await;
    house.deploy_ready(&over_quic(folder.path(), "stuck", STUCK, "")).await;
    house.deploy_ready(&over_quic(folder.path(), "caller", RELAY, "stuck")).await;
    let pid = house.instance_pids("stuck").await[0];
    let reached = format!("/proc/{pid}/root/tmp/reached");
    let killing = async {
        eventually("it is reached", async || Path::new(&reached).exists()).await;
        kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    };
    let ((status, text), ()) = tokio::join!(relay(&house, "caller", "stuck"), killing);
    assert_eq!((status, text.starts_with("instance_died")), (StatusCode::BAD_GATEWAY, true), "{text}");
}

#[tokio::test]
async fn where_nothing_leads_from_instance_to_instance_the_gateway_is_the_way() {
    need_root!();
    let folder = tempfile::tempdir().unwrap();
    let house = pair(folder.path(), &[]).await;
    for _ in 0..2 {
        let (status, text) = relay(&house, "a", "b").await;
        assert_eq!((status, &*text), (StatusCode::OK, "quic; not_nearer=no_domain from inside"), "{}", house.log());
    }
    assert_eq!(counted(&house, "a", "b").await, 0, "the gateway counts what it carries");
}
