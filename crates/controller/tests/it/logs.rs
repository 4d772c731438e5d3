//! Tests of the log stream.

use std::time::{Duration, SystemTime};

use nearpath_testkit::within;
use nearpath_types::{LogLine, LogQuery};
use tokio::sync::mpsc;

use crate::fixture::ControllerFixture;

fn log_line(text: &str) -> LogLine {
    LogLine {
        name: "echo".into(),
        namespace: "openfaas-fn".into(),
        instance: "i1".into(),
        timestamp: SystemTime::UNIX_EPOCH + Duration::from_millis(1_500),
        text: text.into(),
    }
}

#[tokio::test]
async fn lines_are_ndjson() {
    let fixture = ControllerFixture::new().await;
    fixture.deploy_function("echo").await;
    let (lines, stream) = mpsc::channel(8);
    *fixture.fleet.log_lines.lock().unwrap() = Some(stream);
    lines.send(log_line("one")).await.unwrap();
    lines
        .send(log_line("two \"quoted\"\u{1b}[0m"))
        .await
        .unwrap();
    drop(lines);
    let reply = fixture
        .get_path("/system/logs?follow=true&name=echo&tail=-1")
        .await;
    assert_eq!(reply.header("content-type"), "application/x-ndjson");
    let first = r#"{"name":"echo","namespace":"openfaas-fn","instance":"i1","timestamp":"1970-01-01T00:00:01.5Z","text":"one"}"#;
    assert_eq!(reply.text.lines().next(), Some(first));
    assert_eq!(reply.text.lines().count(), 2);
}

#[tokio::test]
async fn queries_are_parsed_or_refused() {
    let fixture = ControllerFixture::new().await;
    fixture.deploy_function("echo").await;
    let query_of = async |path: &str| {
        fixture.expect_status(200, "GET", path, "").await;
        fixture.fleet.log_queries.lock().unwrap().pop().unwrap()
    };
    let all = LogQuery {
        function: "echo".parse().unwrap(),
        instance: None,
        tail: None,
        since: None,
        follow: false,
    };
    assert_eq!(
        query_of("/system/logs?name=echo&tail=-1&follow=false&instance=&since=").await,
        all
    );
    assert_eq!(
        query_of("/system/logs?name=echo.openfaas-fn&follow=1").await,
        LogQuery {
            follow: true,
            ..all.clone()
        }
    );
    let since = Some(SystemTime::UNIX_EPOCH + Duration::from_secs(5));
    let some = LogQuery {
        instance: Some("i1".into()),
        tail: Some(3),
        since,
        ..all
    };
    assert_eq!(
        query_of("/system/logs?name=echo&namespace=openfaas-fn&instance=i1&tail=3&since=1970-01-01T01:00:05%2B01:00")
            .await,
        some
    );

    for bad in [
        "",
        "name=",
        "name=Echo_1",
        "name=echo&tail=few",
        "name=echo&follow=yes",
        "name=echo&since=yesterday",
    ] {
        let reply = fixture
            .expect_status(422, "GET", &format!("/system/logs?{bad}"), "")
            .await;
        assert_eq!(reply.header("x-nearpath-reason"), "bad_request");
    }
    within(fixture.expect_status(404, "GET", "/system/logs?name=other", "")).await;
}
