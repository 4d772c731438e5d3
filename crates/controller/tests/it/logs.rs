//! The log stream.

use std::time::{Duration, SystemTime};

use nearpath_testkit::within;
use nearpath_types::{LogLine, LogQuery};
use tokio::sync::mpsc;

use crate::lab::Lab;

fn line(text: &str) -> LogLine {
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
    let lab = Lab::new().await;
    lab.deploy("echo").await;
    let (lines, stream) = mpsc::channel(8);
    *lab.fleet.lines.lock().unwrap() = Some(stream);
    lines.send(line("one")).await.unwrap();
    lines.send(line("two \"quoted\"\u{1b}[0m")).await.unwrap();
    drop(lines);
    let reply = lab.get("/system/logs?follow=true&name=echo&tail=-1").await;
    assert_eq!(reply.header("content-type"), "application/x-ndjson");
    let first = r#"{"name":"echo","namespace":"openfaas-fn","instance":"i1","timestamp":"1970-01-01T00:00:01.5Z","text":"one"}"#;
    assert_eq!(reply.text.lines().next(), Some(first));
    assert_eq!(reply.text.lines().count(), 2);
}

#[tokio::test]
async fn queries_are_read_or_refused() {
    let lab = Lab::new().await;
    lab.deploy("echo").await;
    let asked = async |path: &str| {
        lab.expect(200, "GET", path, "").await;
        lab.fleet.asked.lock().unwrap().pop().unwrap()
    };
    let all = LogQuery { function: "echo".parse().unwrap(), instance: None, tail: None, since: None, follow: false };
    assert_eq!(asked("/system/logs?name=echo&tail=-1&follow=false&instance=&since=").await, all);
    assert_eq!(asked("/system/logs?name=echo.openfaas-fn&follow=1").await, LogQuery { follow: true, ..all.clone() });
    let since = Some(SystemTime::UNIX_EPOCH + Duration::from_secs(5));
    let some = LogQuery { instance: Some("i1".into()), tail: Some(3), since, ..all };
    assert_eq!(
        asked("/system/logs?name=echo&namespace=openfaas-fn&instance=i1&tail=3&since=1970-01-01T01:00:05%2B01:00")
            .await,
        some
    );

    for bad in ["", "name=", "name=Echo_1", "name=echo&tail=few", "name=echo&follow=yes", "name=echo&since=yesterday"] {
        let reply = lab.expect(422, "GET", &format!("/system/logs?{bad}"), "").await;
        assert_eq!(reply.header("x-nearpath-reason"), "bad_request");
    }
    within(lab.expect(404, "GET", "/system/logs?name=other", "")).await;
}
