//! Updates close together: no request fails, whatever instance it was on its way to.

use std::sync::Arc;
use std::time::Duration;

use http::Method;
use nearpath_testkit::need_root;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::load::{LoadCounts, bounded_loop};
use crate::test_server::{TestServer, http_function, script_function};

/// Maximum of requests without a response: each is a process of its own in some tests, and a busy
/// machine starts few of those a second.
const MAX_UNDER_WAY: usize = 32;

/// Updates a function `count` times within `length`, each to a revision of its own.
async fn update_often(server: &TestServer, mut spec: Value, count: u32, length: Duration) {
    let start = tokio::time::Instant::now();
    for n in 0..count {
        tokio::time::sleep_until(start + length * n / count).await;
        spec["envVars"]["revision"] = json!(n.to_string());
        let answer = server
            .send_request(Method::PUT, "/system/functions", spec.to_string())
            .await;
        assert!(answer.status().is_success(), "{:?}", answer.body());
    }
}

/// Asserts that a load loses no request while its function is updated `count` times.
async fn assert_no_failure(server: &TestServer, spec: Value, count: u32, length: Duration) {
    server.deploy_ready(&spec).await;
    let path = format!("/function/{}", spec["service"].as_str().unwrap());
    let counts = Arc::<LoadCounts>::default();
    let load = bounded_loop(server.addr, &path, (200, length), (MAX_UNDER_WAY, &counts));
    let updates = update_often(server, spec, count, length);
    // Longer than the limit of a request: a lost one is told by its own text.
    let limit = length + Duration::from_secs(60);
    let (outcome, ()) = timeout(limit, async { tokio::join!(load, updates) })
        .await
        .expect("load and updates end in time");
    assert!(
        outcome.failures.is_empty() && outcome.answered > 0,
        "{} failed, {} answered: {:?}\n{}",
        outcome.failures.len(),
        outcome.answered,
        outcome.failures,
        server.log()
    );
}

#[tokio::test]
async fn quick_updates_of_a_server_fail_no_request() {
    need_root!();
    let server = TestServer::start().await;
    let spec = http_function(&server.data_dir, "often", "self.answer(200, b'done')");
    assert_no_failure(&server, spec, 60, Duration::from_secs(12)).await;
}

#[tokio::test]
async fn quick_updates_of_a_program_fail_no_request() {
    need_root!();
    let server = TestServer::start().await;
    let spec = script_function(&server.data_dir, "often", "exec cat\n");
    assert_no_failure(&server, spec, 150, Duration::from_secs(12)).await;
}

#[tokio::test]
#[ignore = "takes a minute: make test-updates"]
async fn a_thousand_updates_in_a_minute_fail_no_request() {
    need_root!();
    let server = TestServer::start().await;
    let spec = script_function(&server.data_dir, "often", "exec cat\n");
    assert_no_failure(&server, spec, 1_000, Duration::from_secs(60)).await;
}
