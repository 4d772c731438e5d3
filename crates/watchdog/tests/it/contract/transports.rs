//! Suite for every transport of a call to a watchdog: callers see the same over all of them.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::{Frame, Incoming};
use nearpath_testkit::within;
use nearpath_wire::mtls::AlpnProtocol::{Http1, Http2};
use nearpath_wire::mtls::TlsVersion::{Tls12, Tls13};
use rustix::process::Signal;
use tokio::sync::{Notify, mpsc};

use crate::contract::call_transports::{
    AnyBody, BoxedBody, TestConnection, TestTransport, any_body,
};
use crate::contract::node::{IdentityFixture, run_on_one_thread, start_with_identity};
use crate::contract::support::{WatchdogProcess, frames, full, start_tenant};

/// Runs every case over every way.
macro_rules! suite {
    ($($module:ident: $way:expr;)*) => {$(
        mod $module {
            suite!(@cases $way; calls a_megabyte_both_ways parts_pass_as_they_come trailers a_caller_who_leaves deadline an_instance_that_stops);
        }
    )*};
    (@cases $way:expr; $($case:ident)*) => {$(
        #[test]
        fn $case() {
            use super::*;
            run_on_one_thread(super::$case($way));
        }
    )*};
}

suite! {
    tcp: TestTransport::Tcp(Http1);
    h2c: TestTransport::Tcp(Http2);
    tls12: TestTransport::Tls(Tls12, Http1);
    tls12_h2: TestTransport::Tls(Tls12, Http2);
    tls13: TestTransport::Tls(Tls13, Http1);
    tls13_h2: TestTransport::Tls(Tls13, Http2);
    quic: TestTransport::Quic;
}

/// A watchdog with an identity, and a connection to it.
struct ConnectedWatchdog {
    watchdog: WatchdogProcess,
    connection: TestConnection,
    _pipe: std::os::unix::net::UnixStream,
}

impl ConnectedWatchdog {
    async fn new(way: TestTransport, tenant: std::net::SocketAddr, more: &[(&str, &str)]) -> Self {
        let node = IdentityFixture::new();
        let (watchdog, pipe) = start_with_identity(tenant, &node.provision.encode(), more);
        watchdog.stderr.wait_for("TLS and QUIC on ");
        let line = TestConnection::open(way, &node, &watchdog).await;
        Self {
            watchdog,
            connection: line,
            _pipe: pipe,
        }
    }
}

fn post(body: AnyBody) -> Request<AnyBody> {
    Request::post("/path?query").body(body).unwrap()
}

async fn read_whole(response: Response<BoxedBody>) -> (u16, Bytes) {
    (
        response.status().as_u16(),
        within(response.into_body().collect())
            .await
            .unwrap()
            .to_bytes(),
    )
}

async fn echo(request: Request<Incoming>) -> Response<Full<Bytes>> {
    let (method, path) = (
        request.method().to_string(),
        request.uri().path().to_owned(),
    );
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let head = Response::builder()
        .status(201)
        .header("x-method", method)
        .header("x-path", path);
    head.body(Full::new(body)).unwrap()
}

async fn calls(way: TestTransport) {
    let mut place = ConnectedWatchdog::new(way, start_tenant(echo).await, &[]).await;
    for (method, body) in [("GET", ""), ("POST", "some"), ("GET", ""), ("PUT", "more")] {
        let request = Request::builder()
            .method(method)
            .uri("/path")
            .body(any_body(full(body)))
            .unwrap();
        let response = place.connection.call(request).await.unwrap();
        assert_eq!(
            (
                &response.headers()["x-method"],
                &response.headers()["x-path"]
            ),
            (&method.parse().unwrap(), &"/path".parse().unwrap())
        );
        assert_eq!(read_whole(response).await, (201, Bytes::from(body)));
    }
}

async fn a_megabyte_both_ways(way: TestTransport) {
    let mut place = ConnectedWatchdog::new(way, start_tenant(echo).await, &[]).await;
    let sent: Bytes = (0..1_048_577u32)
        .map(|k| (k.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    for _ in 0..2 {
        let (status, got) = read_whole(
            place
                .connection
                .call(post(any_body(Full::new(sent.clone()))))
                .await
                .unwrap(),
        )
        .await;
        assert_eq!(status, 201);
        assert!(got == sent, "{} bytes came back, or other ones", got.len());
    }
}

/// A part of the request is answered before the next one is sent.
async fn parts_pass_as_they_come(way: TestTransport) {
    let mirror = async |request: Request<Incoming>| Response::new(request.into_body());
    let mut place = ConnectedWatchdog::new(way, start_tenant(mirror).await, &[]).await;
    let (sender, body) = frames();
    sender.send(Ok(Frame::data("first".into()))).await.unwrap();
    let mut answer = place
        .connection
        .call(post(any_body(body)))
        .await
        .unwrap()
        .into_body();
    assert_eq!(
        within(answer.frame())
            .await
            .unwrap()
            .unwrap()
            .into_data()
            .unwrap(),
        "first"
    );
    for part in ["second", "third"] {
        sender.send(Ok(Frame::data(part.into()))).await.unwrap();
        assert_eq!(
            within(answer.frame())
                .await
                .unwrap()
                .unwrap()
                .into_data()
                .unwrap(),
            part
        );
    }
    drop(sender);
    assert!(
        within(answer.collect())
            .await
            .unwrap()
            .to_bytes()
            .is_empty()
    );
}

async fn trailers(way: TestTransport) {
    let (sender, body) = frames();
    let body = Arc::new(Mutex::new(Some(body)));
    let answer = move |_| {
        let head = Response::builder()
            .header("content-type", "application/grpc")
            .header("trailer", "grpc-status");
        std::future::ready(head.body(body.lock().unwrap().take().unwrap()).unwrap())
    };
    let mut place = ConnectedWatchdog::new(way, start_tenant(answer).await, &[]).await;
    let request = Request::post("/s/m")
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    sender.send(Ok(Frame::data("data".into()))).await.unwrap();
    let response = place
        .connection
        .call(request.body(any_body(full("asked"))).unwrap())
        .await
        .unwrap();
    let said = HeaderMap::from_iter([("grpc-status".parse().unwrap(), "7".parse().unwrap())]);
    sender.send(Ok(Frame::trailers(said))).await.unwrap();
    drop(sender);
    let rest = within(response.into_body().collect()).await.unwrap();
    if way.is_multiplexed() {
        assert_eq!(rest.trailers().expect("trailers")["grpc-status"], "7");
    }
    assert_eq!(rest.to_bytes(), "data");
}

/// Notifies when the call that holds it is dropped.
struct NotifyOnDrop(Arc<Notify>);

impl Drop for NotifyOnDrop {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

async fn a_caller_who_leaves(way: TestTransport) {
    let (began, gone) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (begin, leave) = (Arc::clone(&began), Arc::clone(&gone));
    let answer = move |request: Request<Incoming>| {
        let (begin, held) = (Arc::clone(&begin), NotifyOnDrop(Arc::clone(&leave)));
        async move {
            let _held = held;
            let _ = request.into_body().collect().await; // a server that has a body unread does not look whether its caller is there
            begin.notify_one();
            std::future::pending::<Response<Empty<Bytes>>>().await
        }
    };
    let mut place = ConnectedWatchdog::new(way, start_tenant(answer).await, &[]).await;
    let call = tokio::task::spawn_local(async move {
        let _ = place.connection.call(post(any_body(full("work")))).await;
        place
    });
    within(began.notified()).await;
    call.abort(); // drops the connection as well
    within(gone.notified()).await;
}

async fn deadline(way: TestTransport) {
    let silent =
        start_tenant(async |_| std::future::pending::<Response<Empty<Bytes>>>().await).await;
    let mut place = ConnectedWatchdog::new(way, silent, &[("exec_timeout", "200ms")]).await;
    let response = place
        .connection
        .call(post(any_body(full("work"))))
        .await
        .unwrap();
    assert_eq!(response.headers()["x-nearpath-reason"], "exec_timeout");
    assert_eq!(response.status(), 504);
}

async fn an_instance_that_stops(way: TestTransport) {
    let (reached, mut reaching) = mpsc::unbounded_channel();
    let go = Arc::new(Notify::new());
    let wait = Arc::clone(&go);
    let slow = move |_| {
        let (reached, wait) = (reached.clone(), Arc::clone(&wait));
        async move {
            reached.send(()).unwrap();
            wait.notified().await;
            Response::new(full("at last"))
        }
    };
    let mut place = ConnectedWatchdog::new(way, start_tenant(slow).await, &[]).await;
    let mut line = place.connection;
    let call = tokio::task::spawn_local(async move {
        read_whole(line.call(post(any_body(full("")))).await.unwrap()).await
    });
    reaching.recv().await.unwrap();
    place.watchdog.send_signal(Signal::TERM);
    place.watchdog.stderr.wait_for("stopping");
    go.notify_one();
    assert_eq!(call.await.unwrap(), (200, "at last".into()));
    assert!(place.watchdog.wait_exit().await.success());
}
