//! Answers that last: what ends them and what does not.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures_util::stream;
use http::{HeaderMap, HeaderValue, Request, Response, Version};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Body as _, Frame, Incoming};
use nearpath_testkit::within;

use crate::contract::support::{AnyError, WatchdogProcess, frames, full, send, start_tenant};

type AnyBody = UnsyncBoxBody<Bytes, AnyError>;

/// Body with one piece and no end.
fn endless_body() -> AnyBody {
    let first = stream::iter([Ok::<_, AnyError>(Frame::data(Bytes::from("half")))]);
    StreamBody::new(futures_util::StreamExt::chain(first, stream::pending())).boxed_unsync()
}

fn build_request(
    path: &str,
    version: Version,
    headers: &[(&str, &str)],
) -> Request<http_body_util::Full<Bytes>> {
    let request = Request::post(path).version(version);
    headers
        .iter()
        .fold(request, |request, (name, value)| {
            request.header(*name, *value)
        })
        .body(full(""))
        .unwrap()
}

/// Waits until a call that began just now was cut at its deadline: every call before it is past its
/// own.
async fn wait_for_deadline(watchdog: &WatchdogProcess) {
    let response = send(watchdog.addr, build_request("/half", Version::HTTP_11, &[]))
        .await
        .unwrap();
    within(response.into_body().collect())
        .await
        .expect_err("an ordinary answer is cut at the deadline");
}

async fn check_outlives_deadline(kind: &'static str, version: Version, headers: &[(&str, &str)]) {
    let (sender, body) = frames();
    let body = Arc::new(Mutex::new(Some(body.boxed_unsync())));
    let answer = move |request: Request<Incoming>| {
        let body = match request.uri().path() {
            "/half" => endless_body(),
            _ => body.lock().unwrap().take().unwrap(),
        };
        let kind = if request.uri().path() == "/half" {
            "text/plain"
        } else {
            kind
        };
        std::future::ready(
            Response::builder()
                .header("content-type", kind)
                .body(body)
                .unwrap(),
        )
    };
    let watchdog =
        WatchdogProcess::in_http_mode(start_tenant(answer).await, &[("exec_timeout", "300ms")]);
    sender.send(Ok(Frame::data("1".into()))).await.unwrap();
    let mut body = send(watchdog.addr, build_request("/", version, headers))
        .await
        .unwrap()
        .into_body();
    assert_eq!(
        within(body.frame())
            .await
            .unwrap()
            .unwrap()
            .into_data()
            .unwrap(),
        "1",
        "{kind}"
    );
    wait_for_deadline(&watchdog).await;
    sender.send(Ok(Frame::data("2".into()))).await.unwrap();
    let trailers = HeaderMap::from_iter([("grpc-status".parse().unwrap(), "0".parse().unwrap())]);
    sender.send(Ok(Frame::trailers(trailers))).await.unwrap();
    drop(sender);
    let rest = within(body.collect())
        .await
        .unwrap_or_else(|fault| panic!("{kind}: cut: {fault}"));
    if version == Version::HTTP_2 {
        assert_eq!(rest.trailers().unwrap()["grpc-status"], "0");
    }
    assert_eq!(rest.to_bytes(), "2", "{kind}");
}

#[tokio::test]
async fn events_outlive_the_deadline_whether_they_were_asked_for_or_not() {
    for headers in [&[][..], &[("accept", "text/event-stream")]] {
        check_outlives_deadline(
            "text/event-stream; charset=utf-8",
            Version::HTTP_11,
            headers,
        )
        .await;
        check_outlives_deadline("application/x-ndjson", Version::HTTP_11, headers).await;
    }
}

#[tokio::test]
async fn grpc_answers_outlive_the_deadline() {
    let headers = [("content-type", "application/grpc"), ("te", "trailers")];
    check_outlives_deadline("application/grpc+proto", Version::HTTP_2, &headers).await;
}

/// The head of a stream must be there in time like any other.
#[tokio::test]
async fn the_head_of_a_stream_has_a_deadline() {
    let silent = start_tenant(async |_| std::future::pending::<Response<AnyBody>>().await).await;
    let watchdog = WatchdogProcess::in_http_mode(silent, &[("exec_timeout", "300ms")]);
    let response = send(
        watchdog.addr,
        build_request("/", Version::HTTP_11, &[("accept", "text/event-stream")]),
    )
    .await
    .unwrap();
    assert_eq!(
        (
            response.status().as_u16(),
            &response.headers()["x-nearpath-reason"]
        ),
        (504, &HeaderValue::from_static("exec_timeout"))
    );
}

/// gRPC clients read no HTTP status, so the watchdog's own errors are gRPC statuses without a body.
#[tokio::test]
async fn errors_reach_grpc_callers_as_grpc_statuses() {
    let silent = start_tenant(async |_| std::future::pending::<Response<AnyBody>>().await).await;
    let watchdog =
        WatchdogProcess::in_http_mode(silent, &[("exec_timeout", "300ms"), ("log_callid", "true")]);
    let response = send(
        watchdog.addr,
        build_request(
            "/",
            Version::HTTP_2,
            &[("content-type", "application/grpc")],
        ),
    )
    .await
    .unwrap();
    let headers = response.headers();
    assert_eq!(
        (response.status().as_u16(), &headers["grpc-status"]),
        (200, &HeaderValue::from_static("4"))
    );
    assert_eq!(
        headers["grpc-message"],
        "watchdog: exec_timeout: the function did not answer within 300ms (exec_timeout)"
    );
    assert_eq!(
        (&headers["content-type"], &headers["x-nearpath-reason"]),
        (
            &HeaderValue::from_static("application/grpc"),
            &HeaderValue::from_static("exec_timeout")
        )
    );
    assert!(response.body().is_end_stream());
    watchdog.stdout.wait_for(" - 504 - ");
}
