//! Completion records: metrics and access log.

use http::Request;
use nearpath_testkit::eventually;
use nearpath_types::FunctionPolicy;

use crate::fixture::{TestGateway, full_body, send_and_collect, start_mirror};

#[tokio::test]
async fn metrics_have_openfaas_names() {
    let fixture = TestGateway::start();
    fixture.publish_functions(&[
        ("echo", FunctionPolicy::default(), &[start_mirror().await]),
        ("idle.dev", FunctionPolicy::default(), &[]),
    ]);
    for _ in 0..3 {
        fixture.send_get("/function/echo").await;
    }
    fixture.send_get("/function/missing").await;
    let echo = r#"function_name="echo.openfaas-fn""#;
    eventually("three are counted", async || {
        fixture.gateway.invocations(&"echo".parse().unwrap()) == 3
    })
    .await;
    let metrics = fixture.encode_metrics();
    for line in [
        format!("gateway_function_invocation_total{{{echo},code=\"200\"}} 3"),
        format!("gateway_functions_seconds_count{{{echo},code=\"200\"}} 3"),
        format!("gateway_functions_seconds_bucket{{le=\"+Inf\",{echo},code=\"200\"}} 3"),
        format!("gateway_function_invocation_started{{{echo}}} 3"),
        format!("gateway_service_count{{{echo}}} 1"),
        "gateway_service_count{function_name=\"idle.dev\"} 0".into(),
        format!("nearpath_inflight{{{echo}}} 0"),
        r#"nearpath_refused_total{function_name="",reason="no_function"} 1"#.into(),
    ] {
        assert!(metrics.contains(&line), "{line} in\n{metrics}");
    }
}

#[tokio::test]
async fn the_access_log_has_every_field() {
    let fixture = TestGateway::start();
    fixture.publish_echo(start_mirror().await);
    let request = Request::post("/function/echo/a?b")
        .header("x-call-id", "mine")
        .header("user-agent", "a-client/1")
        .header(
            "traceparent",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        )
        .body(full_body("12345"))
        .unwrap();
    let answer = send_and_collect(fixture.public, request).await;
    eventually("it is logged", async || {
        fixture.log.parse_lines().len() == 1
    })
    .await;
    let line = &fixture.log.parse_lines()[0];
    for (key, value) in [
        ("call_id", "mine".into()),
        ("function", "echo.openfaas-fn".into()),
        ("method", "POST".into()),
        ("path", "/function/echo/a".into()),
        ("protocol", "HTTP/1.1".into()),
        ("status", 200.into()),
        ("bytes_in", 5.into()),
        ("bytes_out", answer.body.len().into()),
        ("via", "http".into()),
        ("client", "127.0.0.1".into()),
        ("user_agent", "a-client/1".into()),
        ("trace_id", "0af7651916cd43dd8448eb211c80319c".into()),
    ] {
        let value: serde_json::Value = value;
        assert_eq!(line[key], value, "{key} in {line}");
    }
    assert!(
        line["reason"].is_null() && line["duration"].as_f64().unwrap() > 0.0,
        "{line}"
    );
}

#[tokio::test]
async fn a_request_for_no_function_is_logged() {
    let fixture = TestGateway::start();
    for (path, status) in [
        ("/healthz", 200),
        ("/system/functions", 200),
        ("/nowhere", 404),
        ("/function/none", 404),
    ] {
        let before = fixture.log.parse_lines().len();
        fixture.send_get(path).await;
        eventually("it is logged", async || {
            fixture.log.parse_lines().len() == before + 1
        })
        .await;
        let line = &fixture.log.parse_lines()[before];
        assert_eq!(
            (line["path"].as_str(), line["status"].as_u64()),
            (Some(path), Some(status)),
            "{line}"
        );
        assert_ne!(line["reason"], "caller_gone");
        assert_eq!(line["client"], "127.0.0.1");
        // The text of a refusal is bytes sent, too.
        assert_ne!(line["bytes_out"], 0, "{line}");
        assert_ne!(line["call_id"], "");
    }
}

#[tokio::test]
async fn a_function_that_returns_starts_with_fresh_counters() {
    let fixture = TestGateway::start();
    fixture.publish_echo(start_mirror().await);
    fixture.send_get("/function/echo").await;
    let id = "echo".parse().unwrap();
    eventually("it is counted", async || {
        fixture.gateway.invocations(&id) == 1
    })
    .await;
    fixture.publish_echo(start_mirror().await);
    assert_eq!(
        fixture.gateway.invocations(&id),
        1,
        "a snapshot does not forget"
    );
    fixture.publish_functions(&[]);
    fixture.publish_echo(start_mirror().await);
    assert_eq!(fixture.gateway.invocations(&id), 0);
}
