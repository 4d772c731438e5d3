//! Replicas come and go without lost requests.

use std::time::Duration;

use http::StatusCode;
use serde_json::json;

use crate::load::open_loop;
use crate::test_server::{TestServer, echo_function, http_function};

#[tokio::test]
async fn a_sleeping_function_wakes_and_answers_once() {
    nearpath_testkit::need_root!();
    let server = TestServer::start().await;
    server
        .deploy_ready(&echo_function(&server.data_dir, "echo"))
        .await;
    server.scale("echo", 0).await;
    server.wait_available("echo", 0).await;
    assert_eq!(server.describe("echo").await["replicas"], 0);
    let answer = server.call_function("echo", "wake up").await;
    assert_eq!(
        (answer.status(), answer.body().as_ref()),
        (StatusCode::OK, b"wake up".as_ref()),
        "{}",
        server.log()
    );
    assert_eq!(server.describe("echo").await["replicas"], 1);
}

#[tokio::test]
async fn scaling_up_down_to_zero_and_back_loses_nothing() {
    nearpath_testkit::need_root!();
    let server = TestServer::start().await;
    server
        .deploy_ready(&http_function(
            &server.data_dir,
            "work",
            "time.sleep(0.05)\nself.answer(200, b'done')",
        ))
        .await;
    let load = open_loop(server.addr, "/function/work", 40, Duration::from_secs(8));
    let scaling = async {
        for replicas in [3, 1, 0, 1] {
            server.scale("work", replicas).await;
            // load and changes follow a schedule
            tokio::time::sleep(Duration::from_millis(1_500)).await;
        }
    };
    let (outcome, ()) = tokio::join!(load, scaling);
    assert_eq!(outcome.failures, Vec::<String>::new(), "{}", server.log());
    assert_eq!(outcome.answered, 320);
}

#[tokio::test]
async fn a_full_queue_is_reported_with_the_setting_that_bounds_it() {
    nearpath_testkit::need_root!();
    let server = TestServer::start().await;
    let mut spec = http_function(
        &server.data_dir,
        "slow",
        "time.sleep(1)\nself.answer(200, b'done')",
    );
    spec["annotations"] = json!({ "nearpath.io/max-inflight": "1", "nearpath.io/queue": "1" });
    server.deploy_ready(&spec).await;
    let answers = tokio::join!(
        server.call_function("slow", ""),
        server.call_function("slow", ""),
        server.call_function("slow", "")
    );
    let mut statuses =
        [answers.0.status(), answers.1.status(), answers.2.status()].map(|s| s.as_u16());
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 200, 429], "{}", server.log());
    let refused = [answers.0, answers.1, answers.2]
        .into_iter()
        .find(|a| a.status() == 429)
        .unwrap();
    assert!(refused.headers().contains_key("retry-after"));
    assert!(String::from_utf8_lossy(refused.body()).contains("nearpath.io/queue"));
}
