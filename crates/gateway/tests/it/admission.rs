//! Limits, queues, sleeping functions.

use std::time::Duration;

use http::Request;
use nearpath_testkit::{eventually, within};
use nearpath_types::{
    FunctionPolicy, InstanceId, RoutingSnapshot, StartFailure, StartFailureCause,
};

use crate::fixture::{self, TestGateway, full_body, millis, start_blocked_instance, start_mirror};

fn spawn_request(fixture: &TestGateway) -> tokio::task::JoinHandle<fixture::CollectedResponse> {
    let addr = fixture.public;
    tokio::spawn(async move {
        fixture::send_and_collect(
            addr,
            Request::get("/function/echo").body(full_body("")).unwrap(),
        )
        .await
    })
}

async fn wait_for_gauge(fixture: &TestGateway, name: &str, value: u32) {
    let line = format!("{name}{{function_name=\"echo.openfaas-fn\"}} {value}\n");
    eventually(&line, async || fixture.encode_metrics().contains(&line)).await;
}

#[tokio::test]
async fn requests_above_the_limit_wait_and_above_the_queue_are_refused() {
    let fixture = TestGateway::start();
    let instance = start_blocked_instance().await;
    fixture.publish_functions(&[(
        "echo",
        FunctionPolicy {
            max_inflight: Some(1),
            queue: 1,
            ..FunctionPolicy::default()
        },
        &[instance.addr],
    )]);
    let first = spawn_request(&fixture);
    instance.wait_for_requests(1).await;
    let second = spawn_request(&fixture);
    wait_for_gauge(&fixture, "nearpath_queued", 1).await;
    let third = within(spawn_request(&fixture)).await.unwrap();
    assert_eq!(
        (third.status, third.reason(), third.header("retry-after")),
        (429, "overload", "1")
    );
    assert!(third.body.contains("nearpath.io/queue"), "{}", third.body);
    instance.permits.add_permits(2);
    assert_eq!(within(first).await.unwrap().status, 200);
    assert_eq!(within(second).await.unwrap().status, 200);
}

#[tokio::test]
async fn waiting_ends_after_the_queue_timeout() {
    let fixture = TestGateway::start();
    let instance = start_blocked_instance().await;
    let policy = FunctionPolicy {
        max_inflight: Some(1),
        queue_timeout: millis(50),
        ..FunctionPolicy::default()
    };
    fixture.publish_functions(&[("echo", policy, &[instance.addr])]);
    let first = spawn_request(&fixture);
    instance.wait_for_requests(1).await;
    let second = within(spawn_request(&fixture)).await.unwrap();
    assert_eq!(
        (second.status, second.reason(), second.header("retry-after")),
        (503, "queue_timeout", "1")
    );
    assert!(
        second.body.contains("nearpath.io/queue-timeout"),
        "{}",
        second.body
    );
    instance.permits.add_permits(1);
    assert_eq!(within(first).await.unwrap().status, 200);
}

#[tokio::test]
async fn a_caller_that_leaves_the_queue_frees_its_position() {
    let fixture = TestGateway::start();
    let instance = start_blocked_instance().await;
    fixture.publish_functions(&[(
        "echo",
        FunctionPolicy {
            max_inflight: Some(1),
            queue: 1,
            ..FunctionPolicy::default()
        },
        &[instance.addr],
    )]);
    let first = spawn_request(&fixture);
    instance.wait_for_requests(1).await;
    let mut leaver = tokio::net::TcpStream::connect(fixture.public)
        .await
        .unwrap();
    let text = b"GET /function/echo HTTP/1.1\r\nhost: a\r\n\r\n";
    tokio::io::AsyncWriteExt::write_all(&mut leaver, text)
        .await
        .unwrap();
    wait_for_gauge(&fixture, "nearpath_queued", 1).await;
    drop(leaver);
    wait_for_gauge(&fixture, "nearpath_queued", 0).await;
    let third = spawn_request(&fixture);
    wait_for_gauge(&fixture, "nearpath_queued", 1).await;
    instance.permits.add_permits(2);
    assert_eq!(within(first).await.unwrap().status, 200);
    assert_eq!(within(third).await.unwrap().status, 200);
    eventually("the leaver is recorded", async || {
        fixture
            .log
            .parse_lines()
            .iter()
            .any(|line| line["status"] == 499)
    })
    .await;
}

#[tokio::test]
async fn a_sleeping_function_is_woken_once_and_its_callers_are_answered() {
    let mut fixture = TestGateway::start();
    fixture.publish_functions(&[("echo", FunctionPolicy::default(), &[])]);
    let waiting: Vec<_> = (0..10).map(|_| spawn_request(&fixture)).collect();
    assert_eq!(
        within(fixture.wakes.recv()).await.unwrap().to_string(),
        "echo.openfaas-fn"
    );
    wait_for_gauge(&fixture, "nearpath_queued", 10).await;
    fixture.publish_echo(start_mirror().await);
    for one in waiting {
        assert_eq!(within(one).await.unwrap().status, 200);
    }
    let again = std::iter::from_fn(|| fixture.wakes.try_recv().ok()).count();
    assert!(
        again <= 1,
        "{again} more rings for ten requests in a moment"
    );
}

#[tokio::test]
async fn a_waiting_request_wakes_the_function_again() {
    let mut fixture = TestGateway::start();
    fixture.publish_functions(&[("echo", FunctionPolicy::default(), &[])]);
    let waiting = spawn_request(&fixture);
    for _ in 0..2 {
        within(fixture.wakes.recv()).await.unwrap();
    }
    fixture.publish_echo(start_mirror().await);
    assert_eq!(within(waiting).await.unwrap().status, 200);
}

#[tokio::test]
async fn a_function_that_does_not_start_is_refused_with_the_reason() {
    let fixture = TestGateway::start();
    let mut entry = fixture::function_route(
        "echo",
        FunctionPolicy {
            cold_timeout: millis(50),
            ..FunctionPolicy::default()
        },
        &[],
    );
    entry.start_failure = Some(StartFailure {
        cause: StartFailureCause::Exited,
        instance: Some(InstanceId(7)),
        retry_after: None,
    });
    fixture.gateway.publish(&RoutingSnapshot {
        version: 1,
        nodes: Default::default(),
        functions: [entry].into_iter().collect(),
    });
    let answer = fixture.send_get("/function/echo").await;
    assert_eq!(
        (answer.status, answer.reason(), answer.header("retry-after")),
        (503, "cold_timeout", "1")
    );
    assert!(
        answer
            .body
            .contains("ended before it was ready (instance i7)")
            && answer.body.contains("nearpath.io/cold-timeout"),
        "{}",
        answer.body
    );
}

#[tokio::test]
async fn a_function_that_is_known_to_fail_is_refused_without_a_wait() {
    let fixture = TestGateway::start();
    let policy = FunctionPolicy {
        cold_timeout: Duration::from_secs(3_600),
        ..FunctionPolicy::default()
    };
    let mut entry = fixture::function_route("echo", policy, &[]);
    let publish = |version, entry: &nearpath_types::FunctionRoute| {
        fixture.gateway.publish(&RoutingSnapshot {
            version,
            nodes: Default::default(),
            functions: [entry.clone()].into_iter().collect(),
        });
    };
    publish(1, &entry);
    let waiting = spawn_request(&fixture);
    entry.start_failure = Some(StartFailure {
        cause: StartFailureCause::OutOfMemory,
        instance: None,
        retry_after: Some(millis(6_400)),
    });
    publish(2, &entry);
    // One that waits already, and one that comes later.
    for answer in [
        within(waiting).await.unwrap(),
        within(fixture.send_get("/function/echo")).await,
    ] {
        assert_eq!(
            (answer.status, answer.reason(), answer.header("retry-after")),
            (503, "start_failed", "7")
        );
        assert!(answer.body.contains("more memory"), "{}", answer.body);
    }
}

#[tokio::test]
async fn the_callers_own_deadline_ends_the_wait() {
    let fixture = TestGateway::start();
    fixture.publish_functions(&[("echo", FunctionPolicy::default(), &[])]);
    let request = Request::get("/function/echo")
        .header("x-timeout", "50ms")
        .body(full_body(""))
        .unwrap();
    let answer = fixture::send_and_collect(fixture.public, request).await;
    assert_eq!(answer.reason(), "cold_timeout");
    assert!(answer.body.contains("X-Timeout"), "{}", answer.body);
}

#[tokio::test]
async fn removing_a_function_answers_its_waiting_callers_with_404() {
    let fixture = TestGateway::start();
    fixture.publish_functions(&[("echo", FunctionPolicy::default(), &[])]);
    let waiting = spawn_request(&fixture);
    wait_for_gauge(&fixture, "nearpath_queued", 1).await;
    fixture.publish_functions(&[]);
    let answer = within(waiting).await.unwrap();
    assert_eq!((answer.status, answer.reason()), (404, "no_function"));
}

#[tokio::test]
async fn a_withdrawn_instance_does_not_hold_back_the_others() {
    let fixture = TestGateway::start();
    let policy = FunctionPolicy {
        max_inflight: Some(1),
        ..FunctionPolicy::default()
    };
    let busy = start_blocked_instance().await;
    fixture.publish_functions(&[("echo", policy.clone(), &[busy.addr])]);
    let first = spawn_request(&fixture);
    busy.wait_for_requests(1).await;
    fixture.publish_functions(&[("echo", policy, &[start_mirror().await])]);
    assert_eq!(
        within(spawn_request(&fixture)).await.unwrap().status,
        200,
        "the request at the old one no longer counts"
    );
    busy.permits.add_permits(1);
    assert_eq!(
        within(first).await.unwrap().status,
        200,
        "what is in flight is finished"
    );
}
