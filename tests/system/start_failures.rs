//! Instances that fail: callers hear of it at once and without the tenant's output, the
//! administrator with it.

use http::{Method, StatusCode};
use nearpath_testkit::{eventually, need_root};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::test_server::{TestServer, http_function, script_function};

#[tokio::test]
async fn a_crash_at_the_start_is_refused_at_once_without_the_tenants_output() {
    need_root!();
    let server = TestServer::start().await;
    let mut spec = script_function(
        &server.data_dir,
        "crash",
        "echo password=hunter2 >&2\nexit 3\n",
    );
    spec["envVars"] = json!({ "mode": "http", "upstream_url": "http://127.0.0.1:5000" });
    // Without an early refusal the call would wait longer than this test.
    spec["annotations"] =
        json!({ "nearpath.io/cold-timeout": "1h", "nearpath.io/total-timeout": "1h" });
    server.deploy(&spec).await;
    let answer = server.call_function("crash", "").await;
    let body = String::from_utf8_lossy(answer.body());
    assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE, "{body}");
    assert_eq!(answer.headers()["x-nearpath-reason"], "start_failed");
    assert!(answer.headers().contains_key("retry-after"));
    assert!(!body.contains("hunter2"), "{body}");
    assert!(
        body.contains("ended before it was ready (instance i"),
        "{body}"
    );
    let described = server.describe("crash").await;
    let why = described["notReadyReason"].as_str().unwrap();
    assert!(why.contains("hunter2"), "{why}");
}

/// Reads the last failure once there is one.
async fn last_failure(server: &TestServer, name: &str) -> String {
    let mut last = String::new();
    eventually("a failure is reported", async || {
        let described = server.describe(name).await;
        last = described["lastFailure"].as_str().unwrap_or("").to_owned();
        !last.is_empty()
    })
    .await;
    last
}

#[tokio::test]
async fn a_kill_for_lack_of_memory_is_named_and_one_from_outside_is_not_taken_for_it() {
    need_root!();
    let server = TestServer::start().await;
    let code = "hold = b'x' * (400 << 20) if body == b'much' else b''\nself.answer(200, b'done')";
    let mut spec = http_function(&server.data_dir, "eats", code);
    spec["limits"] = json!({ "memory": "100Mi" });
    server.deploy_ready(&spec).await;
    let log = server.send_request(Method::GET, "/system/logs?name=eats&follow=false", "");
    if String::from_utf8_lossy(log.await.body()).contains("limits.memory is not enforced") {
        nearpath_testkit::skip!("needs the memory controller");
    }
    let outside = server.instance_pids("eats").await[0];
    kill_process(Pid::from_raw(outside).unwrap(), Signal::KILL).unwrap();
    let why = last_failure(&server, "eats").await;
    assert!(
        why.contains("by another process and not for its memory"),
        "{why}"
    );
    server.wait_available("eats", 1).await;

    let answer = server.call_function("eats", "much").await;
    assert!(answer.status().is_server_error(), "{:?}", answer.body());
    let limit = "because it needed more memory than limits.memory (100Mi) allows";
    eventually("describe names the limit", async || {
        last_failure(&server, "eats").await.contains(limit)
    })
    .await;
    server.wait_available("eats", 1).await;
    let described = server.describe("eats").await;
    assert!(described["lastFailure"].as_str().unwrap().contains(limit));
    let log = server.send_request(Method::GET, "/system/logs?name=eats&follow=false", "");
    let log = log.await;
    assert!(String::from_utf8_lossy(log.body()).contains(limit));
    let line = "nearpath_instance_oom_kills_total{function_name=\"eats.openfaas-fn\"} 1";
    assert!(server.read_metrics().await.contains(line));
}

#[tokio::test]
async fn a_call_whose_process_is_killed_for_lack_of_memory_names_it() {
    need_root!();
    let server = TestServer::start().await;
    let source = "read -r body\n\
        [ \"$body\" = much ] && exec python3 -c \"x = b'x' * (400 << 20); print(len(x))\"\n\
        echo done\n";
    let mut spec = script_function(&server.data_dir, "glutton", source);
    spec["limits"] = json!({ "memory": "100Mi" });
    server.deploy_ready(&spec).await;
    let log = server.send_request(Method::GET, "/system/logs?name=glutton&follow=false", "");
    if String::from_utf8_lossy(log.await.body()).contains("limits.memory is not enforced") {
        nearpath_testkit::skip!("needs the memory controller");
    }
    let before = server.instance_pids("glutton").await;
    let answer = server.call_function("glutton", "much\n").await;
    let said = String::from_utf8_lossy(answer.body()).into_owned();
    assert_eq!(answer.status(), StatusCode::INTERNAL_SERVER_ERROR, "{said}");
    assert!(said.contains("needed more memory"), "{said}");
    let why = last_failure(&server, "glutton").await;
    let limit = "because it needed more memory than limits.memory (100Mi) allows";
    assert!(why.contains(limit), "{why}");
    let log = server.send_request(Method::GET, "/system/logs?name=glutton&follow=false", "");
    assert!(String::from_utf8_lossy(log.await.body()).contains(limit));
    let line = "nearpath_instance_oom_kills_total{function_name=\"glutton.openfaas-fn\"} 1";
    assert!(server.read_metrics().await.contains(line));
    let answer = server.call_function("glutton", "little\n").await;
    assert_eq!(
        (answer.status(), &answer.body()[..]),
        (StatusCode::OK, &b"done\n"[..])
    );
    assert_eq!(server.instance_pids("glutton").await, before, "it survived");
}

#[tokio::test]
async fn a_function_without_limits_has_those_of_the_node() {
    need_root!();
    let folder = tempfile::tempdir().unwrap();
    let options = ["--default-memory", "100Mi", "--default-pids", "50"];
    let server = TestServer::start_in(&folder.path().join("data"), &options).await;
    let code = "hold = b'x' * (200 << 20) if body == b'much' else b''\nself.answer(200, b'done')";
    let mut declared = http_function(folder.path(), "declares", code);
    declared["limits"] = json!({ "memory": "512Mi" });
    server.deploy_ready(&declared).await;
    let log = server.send_request(Method::GET, "/system/logs?name=declares&follow=false", "");
    if String::from_utf8_lossy(log.await.body()).contains("limits.memory is not enforced") {
        nearpath_testkit::skip!("needs the memory controller");
    }
    let answer = server.call_function("declares", "much").await;
    assert_eq!(answer.status(), StatusCode::OK, "{:?}", answer.body());
    server
        .deploy_ready(&http_function(folder.path(), "silent", code))
        .await;
    let answer = server.call_function("silent", "much").await;
    assert!(answer.status().is_server_error(), "{:?}", answer.body());
    eventually("the node's limit is named", async || {
        last_failure(&server, "silent").await.contains("(100Mi)")
    })
    .await;
}

#[tokio::test]
async fn a_server_on_another_port_is_told_before_its_start_times_out() {
    need_root!();
    let server = TestServer::start().await;
    let mut spec = http_function(&server.data_dir, "elsewhere", "self.answer(200, b'done')");
    spec["envVars"]["PORT"] = json!("5001");
    server.deploy(&spec).await;
    let why = last_failure(&server, "elsewhere").await;
    assert!(
        why.contains("listens on port 5001: set upstream_url to http://127.0.0.1:5001"),
        "{why}"
    );
}
