//! `nearpath rendezvous`: start, tickets, orderly shutdown.

use std::path::Path;
use std::process::Stdio;

use nearpath_p2p::control::{ControlConnection, ControlEvent, ControlSettings};
use nearpath_p2p::message::SignedToken;
use nearpath_testkit::{free_addr, within};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::fake_gateway::CliRun;

/// The program that serves, and what it printed.
async fn start(key: &Path, admin: &str) -> (Child, Value) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_nearpath"))
        .args([
            "rendezvous",
            "--json",
            "--listen",
            "127.0.0.1:0",
            "--observe",
            "127.0.0.1:0",
            "--admin-listen",
            admin,
        ])
        .arg("--key")
        .arg(key)
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = within(lines.next_line())
        .await
        .unwrap()
        .expect("it says where it is");
    (child, serde_json::from_str(&line).unwrap())
}

async fn ticket(key: &Path, worker: &str) -> Value {
    let key = key.to_str().unwrap();
    let args = [
        "rendezvous",
        "ticket",
        "--job",
        "sort",
        "--worker",
        worker,
        "--json",
        "--key",
        key,
    ];
    CliRun::new(&args).output().await.expect(0).json()
}

#[tokio::test]
async fn a_ticket_admits_a_worker_until_shutdown() {
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("key");
    let admin = free_addr().to_string();
    let (mut child, printed) = start(&key, &admin).await;
    assert_eq!(printed["observers"].as_array().unwrap().len(), 4);
    let minted = ticket(&key, "map/3").await;
    assert_eq!(minted["worker"], "spiffe://sort/ns/job/fn/map/instance/3");
    let settings = ControlSettings {
        url: printed["rendezvous"].as_str().unwrap().parse().unwrap(),
        ticket: SignedToken(minted["ticket"].as_str().unwrap().to_owned()),
        tls: None,
    };
    let (_line, mut events) = ControlConnection::open(settings);
    assert!(matches!(
        within(events.recv()).await,
        Some(ControlEvent::Connected(_))
    ));
    let url = format!("http://{admin}/metrics");
    let metrics = tokio::task::spawn_blocking(move || {
        ureq::get(url)
            .call()
            .unwrap()
            .body_mut()
            .read_to_string()
            .unwrap()
    });
    let metrics = within(metrics).await.unwrap();
    assert!(
        metrics.contains("nearpath_rendezvous_control_connections 1"),
        "{metrics}"
    );
    let pid = rustix::process::Pid::from_raw(child.id().unwrap().cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(
        matches!(within(events.recv()).await, Some(ControlEvent::Disconnected { why }) if why.contains("shutting down"))
    );
    assert_eq!(within(child.wait()).await.unwrap().code(), Some(0));
}

#[tokio::test]
async fn invalid_options_are_rejected_with_a_reason() {
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("key");
    let key = key.to_str().unwrap();
    let open = CliRun::new(&["rendezvous", "--listen", "0.0.0.0:0", "--key", key])
        .output()
        .await
        .expect(2);
    assert!(
        open.err.contains("--tls-cert") && open.err.contains("--behind-proxy"),
        "{}",
        open.err
    );
    let args = [
        "rendezvous",
        "ticket",
        "--job",
        "sort",
        "--worker",
        "map/3",
        "--key",
        key,
    ];
    let none = CliRun::new(&args).output().await.expect(1);
    assert!(none.err.contains("first start"), "{}", none.err);
    for args in [
        &["rendezvous", "ticket", "--job", "Sort", "--worker", "map/3"] as &[&str],
        &["rendezvous", "ticket", "--job", "sort", "--worker", "map/x"],
        &["rendezvous", "ticket", "--job", "sort"],
        &["rendezvous", "--observe", "here"],
        &["rendezvous", "--observe", "127.0.0.1:1=here"],
    ] {
        CliRun::new(args).output().await.expect(2);
    }
}
