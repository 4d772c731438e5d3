//! A node whose state a folder declares: calls follow the files, and a restart needs none.

use std::fs;
use std::path::{Path, PathBuf};

use http::{Method, StatusCode};
use nearpath_testkit::eventually;

use crate::test_server::TestServer;

/// A source with `nodes.yml`, and a function `echo` that answers with a text.
struct SourceFolder {
    parent: tempfile::TempDir,
}

impl SourceFolder {
    fn new() -> Self {
        let parent = tempfile::Builder::new()
            .prefix("nearpath-test-")
            .tempdir()
            .unwrap();
        let source = Self { parent };
        fs::create_dir_all(source.path().join("echo")).unwrap();
        let nodes = "nodes:\n  a: {address: 127.0.0.1}\n  b: {address: 127.0.0.2}\n";
        source.write("nodes.yml", nodes);
        source.write("echo/run.sh", "echo first\n");
        source.write("stack.yml", &stack("echo", ""));
        source
    }

    fn path(&self) -> PathBuf {
        self.parent.path().join("source")
    }

    fn data_dir(&self) -> PathBuf {
        self.parent.path().join("data")
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path().join(name), text).unwrap();
    }

    async fn start(&self) -> TestServer {
        TestServer::start_node(&self.data_dir(), &self.path()).await
    }
}

/// A stack file with a function that runs the folder `echo`.
fn stack(name: &str, more: &str) -> String {
    format!("functions:\n  {name}: {{handler: ./echo, fprocess: /bin/sh run.sh{more}}}\n")
}

async fn until_answer(server: &TestServer, function: &str, wanted: &str) {
    eventually(&format!("{function} answers {wanted}"), async || {
        let answer = server.call_function(function, "").await;
        answer.status() == StatusCode::OK && answer.body() == wanted
    })
    .await;
}

async fn until_log(server: &TestServer, part: &str) {
    eventually(part, async || server.log().contains(part)).await;
}

#[tokio::test]
async fn calls_follow_the_files() {
    let source = SourceFolder::new();
    let server = source.start().await;
    until_answer(&server, "echo", "first\n").await;
    source.write("echo/run.sh", "echo second\n");
    until_answer(&server, "echo", "second\n").await;
    source.write("more.yml", &stack("more", ""));
    until_answer(&server, "more", "second\n").await;
    fs::remove_file(source.path().join("more.yml")).unwrap();
    eventually("more is gone", async || {
        server.call_function("more", "").await.status() == StatusCode::NOT_FOUND
    })
    .await;
}

#[tokio::test]
async fn a_fault_is_logged_with_its_place_and_changes_nothing() {
    let source = SourceFolder::new();
    let server = source.start().await;
    until_answer(&server, "echo", "first\n").await;
    source.write("echo/run.sh", "echo second\n");
    source.write("more.yml", &stack("more", ", nodes: [c]"));
    let place = format!("{}/more.yml:2:", source.path().display());
    until_log(&server, &place).await;
    assert_eq!(server.metric_total("nearpath_source_faulty").await, 1);
    until_answer(&server, "echo", "first\n").await;
    source.write("more.yml", &stack("more", ", nodes: [b]"));
    until_answer(&server, "echo", "second\n").await;
    eventually("the fault is gone", async || {
        server.metric_total("nearpath_source_faulty").await == 0
    })
    .await;
    let more = server.describe("more").await;
    assert_eq!(more["availableReplicas"], 0, "it runs on another node");
}

#[tokio::test]
async fn the_api_refuses_changes() {
    let source = SourceFolder::new();
    let server = source.start().await;
    until_answer(&server, "echo", "first\n").await;
    let body = r#"{"replicas":0}"#;
    let refused = server
        .send_request(Method::POST, "/system/scale-function/echo", body)
        .await;
    assert_eq!(refused.status(), StatusCode::CONFLICT);
    let text = String::from_utf8(refused.body().to_vec()).unwrap();
    let wanted = format!(
        "comes from {}: edit the files there",
        source.path().display()
    );
    assert!(text.contains(&wanted), "{text}");
    assert_eq!(server.describe("echo").await["replicas"], 1);
}

#[tokio::test]
async fn a_node_restarts_without_its_folder() {
    let source = SourceFolder::new();
    let mut server = source.start().await;
    until_answer(&server, "echo", "first\n").await;
    server.end_with(rustix::process::Signal::TERM);
    drop(server);
    let away: &Path = &source.parent.path().join("away");
    fs::rename(source.path(), away).unwrap();
    let server = source.start().await;
    until_answer(&server, "echo", "first\n").await;
    until_log(&server, "nodes.yml: cannot be read").await;
    fs::rename(away, source.path()).unwrap();
    source.write("echo/run.sh", "echo second\n");
    until_answer(&server, "echo", "second\n").await;
}

#[tokio::test]
async fn a_successor_applies_the_changes() {
    let source = SourceFolder::new();
    let mut server = source.start().await;
    until_answer(&server, "echo", "first\n").await;
    // The successor must not wait for a function that never has instances here.
    source.write("more.yml", &stack("more", ", nodes: [b]"));
    until_log(&server, "functions=2").await;
    let successor = server.hand_over().await;
    assert!(server.wait_exit().await.success());
    source.write("echo/run.sh", "echo second\n");
    until_answer(&successor, "echo", "second\n").await;
    let log = successor.log();
    assert!(!log.contains("instances are not ready"), "{log}");
}
