//! First steps of a developer.

use http::{Method, StatusCode};
use serde_json::json;

use nearpath_testkit::within;

use crate::test_server::{TestServer, echo_function, http_function, script_function};

#[tokio::test]
async fn a_deployed_function_answers() {
    nearpath_testkit::need_root!();
    let server = TestServer::start().await;
    server
        .deploy_ready(&echo_function(&server.data_dir, "echo"))
        .await;
    let answer = server.call_function("echo", "hello").await;
    assert_eq!(
        (answer.status(), answer.body().as_ref()),
        (StatusCode::OK, b"hello".as_ref()),
        "{}",
        server.log()
    );
    assert!(answer.headers().contains_key("x-call-id"));
    let with_namespace = server.call_function("echo.openfaas-fn", "again").await;
    assert_eq!(with_namespace.body().as_ref(), b"again");
}

#[tokio::test]
async fn the_path_behind_the_name_and_the_query_reach_the_handler() {
    nearpath_testkit::need_root!();
    let server = TestServer::start().await;
    server
        .deploy_ready(&http_function(
            &server.data_dir,
            "show",
            "self.answer(200, self.path.encode())",
        ))
        .await;
    let answer = server
        .send_request(Method::GET, "/function/show/a/b?x=1", "")
        .await;
    assert_eq!(answer.body().as_ref(), b"/a/b?x=1", "{}", server.log());
}

#[tokio::test]
async fn an_unknown_function_is_named_in_the_error() {
    nearpath_testkit::need_root!();
    let server = TestServer::start().await;
    let answer = server.call_function("nobody", "").await;
    let text = String::from_utf8_lossy(answer.body()).into_owned();
    assert_eq!(answer.status(), StatusCode::NOT_FOUND);
    assert!(
        text.contains("gateway") && text.contains("nobody"),
        "{text}"
    );
}

#[tokio::test]
async fn logs_show_what_the_handler_wrote() {
    nearpath_testkit::need_root!();
    let server = TestServer::start().await;
    server
        .deploy_ready(&script_function(
            &server.data_dir,
            "talk",
            "echo 'a word' >&2; cat\n",
        ))
        .await;
    server.call_function("talk", "x").await;
    nearpath_testkit::eventually("the log line", async || {
        let logs = server
            .send_request(Method::GET, "/system/logs?name=talk&follow=false", "")
            .await;
        String::from_utf8_lossy(logs.body()).contains("a word")
    })
    .await;
}

#[tokio::test]
async fn invocations_are_counted() {
    nearpath_testkit::need_root!();
    let server = TestServer::start().await;
    server
        .deploy_ready(&echo_function(&server.data_dir, "echo"))
        .await;
    for _ in 0..3 {
        server.call_function("echo", "x").await;
    }
    assert_eq!(server.describe("echo").await["invocationCount"], 3.0);
    let metrics = server.read_metrics().await;
    let line =
        r#"gateway_function_invocation_total{function_name="echo.openfaas-fn",code="200"} 3"#;
    assert!(metrics.contains(line), "{metrics}");
}

#[tokio::test]
async fn an_update_replaces_the_code_without_a_gap() {
    nearpath_testkit::need_root!();
    let server = TestServer::start().await;
    server
        .deploy_ready(&http_function(
            &server.data_dir,
            "fn",
            "self.answer(200, b'one')",
        ))
        .await;
    let load = crate::load::open_loop(
        server.addr,
        "/function/fn",
        50,
        std::time::Duration::from_secs(3),
    );
    let second = http_function(&server.data_dir, "fn", "self.answer(200, b'two')");
    let update = async {
        let answer = server
            .send_request(Method::PUT, "/system/functions", second.to_string())
            .await;
        assert!(answer.status().is_success());
        nearpath_testkit::eventually("the new code", async || {
            server.call_function("fn", "").await.body().as_ref() == b"two"
        })
        .await;
    };
    let (outcome, ()) = tokio::join!(load, update);
    assert_eq!(outcome.failures, Vec::<String>::new(), "{}", server.log());
    assert!(outcome.answered > 100);
}

#[tokio::test]
async fn a_handler_that_crashes_at_start_is_explained() {
    nearpath_testkit::need_root!();
    let server = TestServer::start().await;
    let mut spec = http_function(&server.data_dir, "broken", "pass");
    spec["envProcess"] = json!("python3 -c 'import sys; sys.exit(\"no such database\")'");
    spec["annotations"] = json!({ "nearpath.io/cold-timeout": "2s" });
    server.deploy(&spec).await;
    let answer = server.call_function("broken", "").await;
    let text = String::from_utf8_lossy(answer.body()).into_owned();
    assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE, "{text}");
    assert!(answer.headers().contains_key("retry-after"));
    // The output of the function is for its administrator, not for callers.
    assert!(text.contains("ended before it was ready"), "{text}");
    assert!(!text.contains("no such database"), "{text}");
    let reason = server.describe("broken").await["notReadyReason"].to_string();
    assert!(reason.contains("no such database"), "{reason}");
}

#[tokio::test]
async fn a_response_cut_for_its_silence_is_logged() {
    nearpath_testkit::need_root!();
    let server = TestServer::start().await;
    let silent = "self.send_response(200); self.send_header('Content-Length', '9'); self.end_headers(); \
                  self.wfile.write(b'begin'); self.wfile.flush(); __import__('time').sleep(60)";
    let mut spec = http_function(&server.data_dir, "silent", silent);
    spec["annotations"] = json!({ "nearpath.io/idle-timeout": "200ms" });
    server.deploy_ready(&spec).await;
    let url = format!("http://{}/function/silent", server.addr);
    let curl = tokio::process::Command::new("curl")
        .args(["-s", "-m", "30", &url])
        .output();
    assert_eq!(within(curl).await.unwrap().stdout, b"begin");
    nearpath_testkit::eventually("the cut is logged", async || {
        let log = server.log();
        log.contains("nearpath.io/idle-timeout") && log.contains("function=silent")
    })
    .await;
}
