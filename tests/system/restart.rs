//! Acknowledged deployments survive a restart, and a second server on the same folder is refused.

use std::process::Command;

use http::{Method, StatusCode};
use nearpath_testkit::{eventually, program};
use rustix::process::Signal;

use crate::test_server::{TestServer, echo_function, script_function};

#[tokio::test]
async fn what_was_acknowledged_before_kill_nine_is_there_afterwards() {
    nearpath_testkit::need_root!();
    let folder = tempfile::tempdir().unwrap();
    let mut server = TestServer::start_in(folder.path(), &[]).await;
    for n in 0..10 {
        server
            .deploy(&echo_function(folder.path(), &format!("echo-{n}")))
            .await;
    }
    server.end_with(Signal::KILL);
    let again = TestServer::start_in(folder.path(), &[]).await;
    let list = again
        .send_request(Method::GET, "/system/functions", "")
        .await;
    let list: Vec<serde_json::Value> = serde_json::from_slice(list.body()).unwrap();
    assert_eq!(list.len(), 10);
}

#[tokio::test]
async fn a_second_server_on_the_same_folder_is_refused() {
    nearpath_testkit::need_root!();
    let server = TestServer::start().await;
    server
        .deploy_ready(&echo_function(&server.data_dir, "echo"))
        .await;
    let mut second =
        TestServer::spawn_with(Command::new(program("nearpath")), &server.data_dir, &[]);
    let status = second.wait_exit().await;
    assert_eq!(status.code(), Some(1));
    let why = "it says who has the folder";
    eventually(why, async || {
        [&server.pid().to_string(), "--data-dir"]
            .iter()
            .all(|word| second.log().contains(*word))
    })
    .await; // its log may be read after its end
    assert_eq!(
        server.call_function("echo", "still here").await.status(),
        StatusCode::OK
    );
}

#[tokio::test]
async fn a_port_in_use_is_named() {
    nearpath_testkit::need_root!();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap().to_string();
    let folder = tempfile::tempdir().unwrap();
    let out = Command::new(program("nearpath"))
        .args([
            "up",
            "--insecure",
            "--listen",
            &addr,
            "--admin-listen",
            "127.0.0.1:0",
            "--data-dir",
        ])
        .arg(folder.path())
        .output()
        .unwrap();
    let reply = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(1), "{reply}");
    assert!(reply.contains(&addr) && reply.contains("in use"), "{reply}");
}

#[tokio::test]
async fn log_lines_outlive_kill_nine_and_a_removal_ends_them() {
    nearpath_testkit::need_root!();
    let folder = tempfile::tempdir().unwrap();
    let mut server = TestServer::start_in(folder.path(), &[]).await;
    let source = "echo before-the-kill >&2; cat";
    server
        .deploy_ready(&script_function(folder.path(), "talks", source))
        .await;
    server.call_function("talks", "x").await;
    let file = folder.path().join("logs/openfaas-fn/talks.log");
    nearpath_testkit::eventually("the line is on disk", async || {
        std::fs::read_to_string(&file).is_ok_and(|text| text.contains("before-the-kill"))
    })
    .await;
    server.end_with(Signal::KILL);

    let server = TestServer::start_in(folder.path(), &[]).await;
    let logs = "/system/logs?name=talks";
    let answer = server.send_request(Method::GET, logs, "").await;
    let text = String::from_utf8_lossy(answer.body()).into_owned();
    assert!(text.contains("before-the-kill"), "{text}");
    let body = r#"{"functionName":"talks"}"#;
    let answer = server
        .send_request(Method::DELETE, "/system/functions", body)
        .await;
    assert_eq!(answer.status(), StatusCode::OK, "{answer:?}");
    nearpath_testkit::eventually("the files are removed", async || !file.exists()).await;
}
