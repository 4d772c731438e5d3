//! Counters and status queries of calls through memory: edges, memory, paths and invocations.

use nearpath_testkit::{eventually, program};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::{call_traced, chain_function, metric_value, run_cli, wait_in_memory};
use crate::test_server::TestServer;

#[tokio::test]
#[expect(
    clippy::too_many_lines,
    reason = "a table of cases, or one conversation from begin to end"
)]
async fn edges_memory_and_paths_are_listed() {
    nearpath_testkit::need_root!();
    let server = TestServer::start().await;
    server
        .deploy_ready(&chain_function(&server, "second", None, ""))
        .await;
    server
        .deploy_ready(&chain_function(
            &server,
            "first",
            Some("second"),
            "second, third",
        ))
        .await;
    wait_in_memory(&server, "first").await;
    eventually("first knows second", async || {
        call_traced(&server, "first").await.status() == 200
    })
    .await;
    let edge = r#"caller="first.openfaas-fn",callee="second.openfaas-fn""#;
    let (before, outside) = (
        metric_value(&server, "nearpath_edge_requests_total", edge).await,
        call_traced(&server, "first"),
    );
    assert_eq!(outside.await.status(), 200);
    for _ in 1..20 {
        assert_eq!(call_traced(&server, "first").await.status(), 200);
    }
    assert_eq!(
        metric_value(&server, "nearpath_edge_requests_total", edge).await,
        before + 20.0
    );
    assert_eq!(
        metric_value(&server, "nearpath_edge_duration_seconds_count", edge).await,
        before + 20.0
    );
    assert_eq!(
        metric_value(&server, "nearpath_edge_failed_total", edge).await,
        0.0
    );
    assert_eq!(
        metric_value(&server, "nearpath_edge_in_flight", edge).await,
        0.0
    );
    let gateway = r#"caller="gateway",callee="first.openfaas-fn""#;
    assert!(metric_value(&server, "nearpath_edge_requests_total", gateway).await >= 20.0);
    let bound = r#"function="second.openfaas-fn""#;
    assert_eq!(
        metric_value(&server, "nearpath_shm_max_held_bytes", bound).await % f64::from(16 << 20),
        0.0
    );

    let edges = run_cli(&server, &["edges", "second"]);
    let edges: Vec<_> = edges
        .as_array()
        .unwrap()
        .iter()
        .map(|edge| edge["caller"].as_str().unwrap())
        .collect();
    assert!(edges.contains(&"first.openfaas-fn"), "{edges:?}");
    let memory = run_cli(&server, &["memory", "shop"]);
    assert_eq!(
        (&memory[0]["chain"], &memory[0]["pageBytes"]),
        (&json!("shop"), &json!(4096))
    );
    assert!(
        memory[0]["holders"].as_array().unwrap().len() == 3,
        "first, second and the gateway: {memory}"
    );

    let paths = run_cli(&server, &["paths", "shop"]);
    let report = |caller: &str, callee: &str| {
        let is = |path: &&Value| path["caller"] == caller && path["callee"] == callee;
        paths
            .as_array()
            .unwrap()
            .iter()
            .find(is)
            .unwrap_or_else(|| panic!("{caller} → {callee}: {paths}"))
            .clone()
    };
    assert_eq!(report("gateway", "first.openfaas-fn")["path"], "shm");
    assert_eq!(
        report("first.openfaas-fn", "second.openfaas-fn")["path"],
        "shm"
    );
    assert_eq!(
        report("first.openfaas-fn", "third.openfaas-fn")["reason"],
        "third.openfaas-fn is not deployed"
    );
    let mut unknown = std::process::Command::new(program("nearpath"));
    unknown.args([
        "paths",
        "nobody",
        "--gateway",
        &format!("http://{}", server.addr),
    ]);
    assert_eq!(unknown.output().unwrap().status.code(), Some(4));
}

/// Number of invocations in `nearpath ls`.
fn invocation_count(server: &TestServer, name: &str) -> u64 {
    let all = run_cli(server, &["ls"]);
    let mine = all
        .as_array()
        .unwrap()
        .iter()
        .find(|function| function["name"] == name);
    mine.unwrap_or_else(|| panic!("{name} is not there: {all}"))["invocationCount"]
        .as_f64()
        .unwrap() as u64
}

#[tokio::test]
async fn a_call_counts_where_it_is_received_over_every_path() {
    nearpath_testkit::need_root!();
    let server = TestServer::start().await;
    server
        .deploy_ready(&chain_function(&server, "second", None, ""))
        .await;
    server
        .deploy_ready(&chain_function(&server, "first", Some("second"), "second"))
        .await;
    wait_in_memory(&server, "first").await;
    eventually("first knows second", async || {
        call_traced(&server, "first").await.status() == 200
    })
    .await;
    let before = (
        invocation_count(&server, "first"),
        invocation_count(&server, "second"),
    );
    for _ in 0..20 {
        assert_eq!(call_traced(&server, "first").await.status(), 200);
    }
    assert_eq!(
        invocation_count(&server, "first"),
        before.0 + 20,
        "from the gateway, through memory: once"
    );
    assert_eq!(
        invocation_count(&server, "second"),
        before.1 + 20,
        "from first alone"
    );
    let ended = r#"function_name="second.openfaas-fn",code="200""#;
    let started = r#"function_name="second.openfaas-fn""#;
    assert_eq!(
        metric_value(&server, "gateway_function_invocation_total", ended).await,
        (before.1 + 20) as f64
    );
    assert_eq!(
        metric_value(&server, "gateway_function_invocation_started", started).await,
        (before.1 + 20) as f64
    );

    let victim = server.instance_pids("second").await[0];
    kill_process(Pid::from_raw(victim).unwrap(), Signal::KILL).unwrap();
    let mut least = before.1 + 20;
    eventually("second is back", async || {
        let now = invocation_count(&server, "second");
        assert!(
            now >= least,
            "an instance that ends takes nothing from the sum: {now} after {least}"
        );
        least = now;
        call_traced(&server, "first").await.status() == 200 && now > before.1 + 20
    })
    .await;
    assert_eq!(call_traced(&server, "second").await.status(), 200);
    assert!(
        invocation_count(&server, "second") > least,
        "and from the gateway too"
    );
}
