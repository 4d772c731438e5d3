//! Mode `http`: calls that break, take too long, or are left.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures_util::stream;
use http::{Request, Response, Version};
use http_body_util::{BodyExt, Empty, StreamBody};
use hyper::body::Frame;
use nearpath_testkit::within;
use nearpath_wire::not_run_header::NOT_RUN;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::Notify;

use crate::contract::http::describe_request;
use crate::contract::support::{
    AnyError, WatchdogProcess, closable_listener, frames, full, send, start_hello_tenant,
    start_tenant, text,
};

#[tokio::test]
async fn a_tenant_that_breaks_the_connection_is_a_500_and_asked_once() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let read = stream.read(&mut [0; 512]).await.unwrap_or(0);
            count.fetch_add(usize::from(read > 0), Ordering::SeqCst); // the probe connects and sends nothing
        }
    });
    let watchdog = WatchdogProcess::in_http_mode(addr, &[]);
    let response = send(watchdog.addr, Request::post("/").body(full("pay")).unwrap())
        .await
        .unwrap();
    assert_eq!(response.headers()["x-openfaas-internal"], "of-watchdog");
    assert_eq!(response.headers()["x-nearpath-reason"], "function_failed");
    assert_eq!(text(response).await.0, 500);
    assert_eq!(asked.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_call_that_no_tenant_took_says_that_it_did_not_run() {
    let (listener, _place) = closable_listener();
    let watchdog = WatchdogProcess::in_http_mode(listener.local_addr().unwrap(), &[]);
    within(listener.accept()).await.unwrap(); // it has seen that its tenant is there
    drop(listener);
    let response = send(watchdog.addr, Request::post("/").body(full("pay")).unwrap())
        .await
        .unwrap();
    assert_eq!(response.headers()["x-openfaas-internal"], "of-watchdog");
    assert_eq!(response.headers()["x-nearpath-reason"], "connect_failed");
    assert_eq!(
        response.headers()[NOT_RUN],
        "connect_failed",
        "the gateway may take it elsewhere"
    );
    assert_eq!(text(response).await.0, 502);
}

/// A tenant that has met a refusal itself may pass it on as it came.
#[tokio::test]
async fn a_tenant_cannot_say_that_its_call_did_not_run() {
    let answer = async |_| {
        let answer = Response::builder()
            .status(502)
            .header(NOT_RUN, "connect_failed");
        answer
            .header("x-nearpath-reason", "connect_failed")
            .body(full("B was not there"))
            .unwrap()
    };
    let watchdog = WatchdogProcess::in_http_mode(start_tenant(answer).await, &[]);
    let response = send(watchdog.addr, Request::post("/").body(full("pay")).unwrap())
        .await
        .unwrap();
    assert_eq!(response.headers().get(NOT_RUN), None);
    assert_eq!(text(response).await, (502, "B was not there".to_owned()));
}

#[tokio::test]
async fn a_broken_answer_breaks_the_response() {
    let answer = async |_| {
        let frames = [
            Ok(Frame::data(Bytes::from("half"))),
            Err(AnyError::from("broken")),
        ];
        Response::new(StreamBody::new(stream::iter(frames)))
    };
    let watchdog = WatchdogProcess::in_http_mode(start_tenant(answer).await, &[]);
    if let Ok(response) = send(watchdog.addr, Request::get("/").body(full("")).unwrap()).await
        && response.status() == 200
    {
        within(response.into_body().collect())
            .await
            .expect_err("half an answer must not look whole");
    }
}

#[tokio::test]
async fn timeouts_are_504_and_x_timeout_only_shortens() {
    let silent =
        start_tenant(async |_| std::future::pending::<Response<Empty<Bytes>>>().await).await;
    for (exec_timeout, x_timeout, said) in [
        ("300ms", None, "300ms"),
        ("1h", Some("200ms"), "200ms"),
        ("250ms", Some("1h"), "250ms"),
    ] {
        let watchdog = WatchdogProcess::in_http_mode(silent, &[("exec_timeout", exec_timeout)]);
        let ask = x_timeout.into_iter().fold(Request::get("/"), |ask, limit| {
            ask.header("x-timeout", limit)
        });
        let response = send(watchdog.addr, ask.body(full("")).unwrap())
            .await
            .unwrap();
        assert_eq!(response.headers()["x-nearpath-reason"], "exec_timeout");
        let (status, body) = text(response).await;
        assert_eq!(status, 504);
        assert!(
            body.contains(said) && body.contains("(exec_timeout)"),
            "{body}"
        );
    }
}

#[tokio::test]
async fn a_timeout_inside_an_answer_breaks_it() {
    let answer = async |_| {
        let first = stream::iter([Ok::<_, AnyError>(Frame::data(Bytes::from("half")))]);
        Response::new(StreamBody::new(futures_util::StreamExt::chain(
            first,
            stream::pending(),
        )))
    };
    let watchdog =
        WatchdogProcess::in_http_mode(start_tenant(answer).await, &[("exec_timeout", "300ms")]);
    let response = send(watchdog.addr, Request::get("/").body(full("")).unwrap())
        .await
        .unwrap();
    within(response.into_body().collect())
        .await
        .expect_err("cut at the deadline");
}

/// Notifies when the call that holds it is dropped.
struct NotifyOnDrop(Arc<Notify>);

impl Drop for NotifyOnDrop {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

#[tokio::test]
async fn a_caller_who_leaves_ends_the_tenants_call() {
    let (began, gone) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (begin, leave) = (Arc::clone(&began), Arc::clone(&gone));
    let answer = move |_| {
        let (begin, held) = (Arc::clone(&begin), NotifyOnDrop(Arc::clone(&leave)));
        async move {
            let _held = held;
            begin.notify_one();
            std::future::pending::<Response<Empty<Bytes>>>().await
        }
    };
    let addr = start_tenant(answer).await;
    for (version, kind) in [
        (Version::HTTP_11, "a/b"),
        (Version::HTTP_2, "a/b"),
        (Version::HTTP_2, "application/grpc"),
    ] {
        let watchdog = WatchdogProcess::in_http_mode(addr, &[]);
        let target = watchdog.addr;
        let ask = Request::get("/")
            .version(version)
            .header("content-type", kind)
            .body(full(""))
            .unwrap();
        let call = tokio::spawn(async move { send(target, ask).await });
        within(began.notified()).await;
        call.abort();
        within(gone.notified()).await;
    }
}

#[tokio::test]
async fn a_caller_who_takes_no_bytes_is_cut_by_write_timeout() {
    let gone = Arc::new(Notify::new());
    let leave = Arc::clone(&gone);
    let answer = move |_| {
        let held = NotifyOnDrop(Arc::clone(&leave));
        let endless = stream::repeat_with(move || {
            let _ = &held;
            Ok::<_, AnyError>(Frame::data(Bytes::from(vec![0; 1 << 16])))
        });
        std::future::ready(Response::new(StreamBody::new(endless)))
    };
    let watchdog = WatchdogProcess::in_http_mode(
        start_tenant(answer).await,
        &[("write_timeout", "200ms"), ("exec_timeout", "0")],
    );
    let mut stream = tokio::net::TcpStream::connect(watchdog.addr).await.unwrap();
    stream
        .write_all(b"GET / HTTP/1.1\r\nHost: f\r\n\r\n")
        .await
        .unwrap();
    within(gone.notified()).await;
}

#[tokio::test]
async fn a_body_that_stops_arriving_is_the_callers_fault() {
    let watchdog = WatchdogProcess::in_http_mode(
        start_tenant(describe_request).await,
        &[("read_timeout", "200ms")],
    );
    let (sender, body) = frames();
    sender.send(Ok(Frame::data("half".into()))).await.unwrap();
    let response = send(watchdog.addr, Request::post("/").body(body).unwrap())
        .await
        .unwrap();
    assert_eq!(response.headers()["x-nearpath-reason"], "slow_request");
    let (status, said) = text(response).await;
    assert_eq!(status, 408);
    assert!(said.contains("read_timeout"), "{said}");
    drop(sender);
}

#[tokio::test]
async fn a_head_that_stops_arriving_is_cut_and_an_idle_connection_is_not() {
    let watchdog =
        WatchdogProcess::in_http_mode(start_hello_tenant().await, &[("read_timeout", "200ms")]);
    let mut idle = tokio::net::TcpStream::connect(watchdog.addr).await.unwrap();
    let mut slow = tokio::net::TcpStream::connect(watchdog.addr).await.unwrap();
    slow.write_all(b"GET / HTTP/1.1\r\nHo").await.unwrap();
    let mut rest = Vec::new();
    within(slow.read_to_end(&mut rest)).await.ok();
    idle.write_all(b"GET / HTTP/1.1\r\nHost: f\r\nConnection: close\r\n\r\n")
        .await
        .unwrap();
    let mut answer = String::new();
    within(idle.read_to_string(&mut answer)).await.unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 200") && answer.ends_with("hello"),
        "{answer}"
    );
}
