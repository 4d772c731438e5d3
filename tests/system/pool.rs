//! Outside connections in `nearpath pool` and in the metrics.

use std::net::Ipv4Addr;

use nearpath_testkit::{eventually, need_root};
use serde_json::{Value, json};

use crate::egress::{hello_code, run_code, runner_function};
use crate::external_server::{ExternalServer, MACHINE_NAME, on_own_machine};
use crate::shm::{metric_value, run_cli};
use crate::test_server::TestServer;

/// The only row of a function's connections.
fn pool_row(server: &TestServer, function: &str) -> Value {
    let all = run_cli(server, &["pool", "ls", function]);
    assert_eq!(
        all.as_array().map(Vec::len),
        Some(1),
        "one function, one destination: {all}"
    );
    all[0].clone()
}

#[tokio::test]
async fn outside_connections_are_listed_and_counters_outlive_instances() {
    need_root!();
    on_own_machine();
    let outside = ExternalServer::bind_at(Ipv4Addr::LOCALHOST);
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start_in(folder.path(), &[]).await;
    server
        .deploy_ready(&runner_function(
            folder.path(),
            "goes",
            &format!("{MACHINE_NAME}:{} max=3 protocol=tcp", outside.port),
        ))
        .await;
    eventually("one is warm before the first call", async || {
        pool_row(&server, "goes")["warm"] == 1
    })
    .await;
    let keeps = format!(
        "import builtins\nbuiltins.kept = socket.create_connection(('{MACHINE_NAME}', {}), 20)\nsaid = 'open'",
        outside.port
    );
    assert_eq!(run_code(&server, "goes", &keeps).await, "open");
    assert_eq!(
        run_code(&server, "goes", &hello_code(MACHINE_NAME, outside.port)).await,
        "heard hello"
    );
    eventually("two were given, one is open still", async || {
        let one = pool_row(&server, "goes");
        let provided = one["hits"].as_u64().unwrap() + one["misses"].as_u64().unwrap();
        provided == 2
            && one["open"].as_u64().unwrap()
                - one["warm"].as_u64().unwrap()
                - one["connecting"].as_u64().unwrap()
                == 1
    })
    .await;
    let one = pool_row(&server, "goes");
    let declared = (&one["owner"], &one["protocol"], &one["max"]);
    assert_eq!(
        declared,
        (&json!("goes.openfaas-fn"), &json!("tcp"), &json!(3))
    );
    assert_eq!(one["openInGroup"], one["open"]);
    let labels = format!(
        r#"owner="goes.openfaas-fn",namespace="openfaas-fn",destination="{MACHINE_NAME}:{}""#,
        outside.port
    );
    let (hits, misses) = (
        metric_value(&server, "nearpath_pool_hits_total", &labels).await,
        metric_value(&server, "nearpath_pool_misses_total", &labels).await,
    );
    assert_eq!(
        (
            hits + misses,
            metric_value(&server, "nearpath_pool_max", &labels).await
        ),
        (2.0, 3.0)
    );

    server.scale("goes", 0).await;
    eventually("with the last instance its connections end", async || {
        pool_row(&server, "goes")["open"] == 0
    })
    .await;
    let one = pool_row(&server, "goes");
    assert_eq!(
        one["hits"].as_f64().unwrap() + one["misses"].as_f64().unwrap(),
        2.0,
        "and what was counted stays: {one}"
    );
}
