//! One suite for every way to call a watchdog: what a caller sees is the same, whatever carries it.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::{Frame, Incoming};
use nearpath_testkit::within;
use nearpath_wire::mutual::Protocol::{Http1, Http2};
use nearpath_wire::mutual::Version::{Tls12, Tls13};
use rustix::process::Signal;
use tokio::sync::{Notify, mpsc};

use crate::contract::node::{Node, run, watchdog};
use crate::contract::support::{Watchdog, frames, full, tenant};
use crate::contract::ways::{Answer, AnyBody, Line, Way, any};

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
            run(super::$case($way));
        }
    )*};
}

suite! {
    tcp: Way::Tcp(Http1);
    h2c: Way::Tcp(Http2);
    tls12: Way::Tls(Tls12, Http1);
    tls12_h2: Way::Tls(Tls12, Http2);
    tls13: Way::Tls(Tls13, Http1);
    tls13_h2: Way::Tls(Tls13, Http2);
    quic: Way::Quic;
}

/// A watchdog with an identity, and a connection to it.
struct Place {
    watchdog: Watchdog,
    line: Line,
    _pipe: std::os::unix::net::UnixStream,
}

impl Place {
    async fn new(way: Way, tenant: std::net::SocketAddr, more: &[(&str, &str)]) -> Self {
        let node = Node::new();
        let (watchdog, pipe) = watchdog(tenant, &node.provision.write(), more);
        watchdog.stderr.find("TLS and QUIC on ");
        let line = Line::open(way, &node, &watchdog).await;
        Self { watchdog, line, _pipe: pipe }
    }
}

fn post(body: AnyBody) -> Request<AnyBody> {
    Request::post("/path?query").body(body).unwrap()
}

async fn whole(response: Response<Answer>) -> (u16, Bytes) {
    (response.status().as_u16(), within(response.into_body().collect()).await.unwrap().to_bytes())
}

async fn echo(request: Request<Incoming>) -> Response<Full<Bytes>> {
    let (method, path) = (request.method().to_string(), request.uri().path().to_owned());
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let head = Response::builder().status(201).header("x-method", method).header("x-path", path);
    head.body(Full::new(body)).unwrap()
}

async fn calls(way: Way) {
    let mut place = Place::new(way, tenant(echo).await, &[]).await;
    for (method, body) in [("GET", ""), ("POST", "some"), ("GET", ""), ("PUT", "more")] {
        let request = Request::builder().method(method).uri("/path").body(any(full(body))).unwrap();
        let response = place.line.call(request).await.unwrap();
        assert_eq!(
            (&response.headers()["x-method"], &response.headers()["x-path"]),
            (&method.parse().unwrap(), &"/path".parse().unwrap())
        );
        assert_eq!(whole(response).await, (201, Bytes::from(body)));
    }
}

async fn a_megabyte_both_ways(way: Way) {
    let mut place = Place::new(way, tenant(echo).await, &[]).await;
    let sent: Bytes = (0..1_048_577u32).map(|k| (k.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for _ in 0..2 {
        let (status, got) = whole(place.line.call(post(any(Full::new(sent.clone())))).await.unwrap()).await;
        assert_eq!(status, 201);
        assert!(got == sent, "{} bytes came back, or other ones", got.len());
    }
}

/// A part of the request is answered before the next one is sent.
async fn parts_pass_as_they_come(way: Way) {
    let mirror = async |request: Request<Incoming>| Response::new(request.into_body());
    let mut place = Place::new(way, tenant(mirror).await, &[]).await;
    let (sender, body) = frames();
    sender.send(Ok(Frame::data("first".into()))).await.unwrap();
    let mut answer = place.line.call(post(any(body))).await.unwrap().into_body();
    assert_eq!(within(answer.frame()).await.unwrap().unwrap().into_data().unwrap(), "first");
    for part in ["second", "third"] {
        sender.send(Ok(Frame::data(part.into()))).await.unwrap();
        assert_eq!(within(answer.frame()).await.unwrap().unwrap().into_data().unwrap(), part);
    }
    drop(sender);
    assert!(within(answer.collect()).await.unwrap().to_bytes().is_empty());
}

async fn trailers(way: Way) {
    let (sender, body) = frames();
    let body = Arc::new(Mutex::new(Some(body)));
    let answer = move |_| {
        let head = Response::builder().header("content-type", "application/grpc").header("trailer", "grpc-status");
        std::future::ready(head.body(body.lock().unwrap().take().unwrap()).unwrap())
    };
    let mut place = Place::new(way, tenant(answer).await, &[]).await;
    let request = Request::post("/s/m").header("content-type", "application/grpc").header("te", "trailers");
    sender.send(Ok(Frame::data("data".into()))).await.unwrap();
    let response = place.line.call(request.body(any(full("asked"))).unwrap()).await.unwrap();
    let said = HeaderMap::from_iter([("grpc-status".parse().unwrap(), "7".parse().unwrap())]);
    sender.send(Ok(Frame::trailers(said))).await.unwrap();
    drop(sender);
    let rest = within(response.into_body().collect()).await.unwrap();
    if way.is_multiplexed() {
        assert_eq!(rest.trailers().expect("trailers")["grpc-status"], "7");
    }
    assert_eq!(rest.to_bytes(), "data");
}

/// Tells when the call that holds it is dropped.
struct Gone(Arc<Notify>);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

async fn a_caller_who_leaves(way: Way) {
    let (began, gone) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (begin, leave) = (Arc::clone(&began), Arc::clone(&gone));
    let answer = move |request: Request<Incoming>| {
        let (begin, held) = (Arc::clone(&begin), Gone(Arc::clone(&leave)));
        async move {
            let _held = held;
            let _ = request.into_body().collect().await; // a server that has a body unread does not look whether its caller is there
            begin.notify_one();
            std::future::pending::<Response<Empty<Bytes>>>().await
        }
    };
    let mut place = Place::new(way, tenant(answer).await, &[]).await;
    let call = tokio::task::spawn_local(async move {
        let _ = place.line.call(post(any(full("work")))).await;
        place
    });
    within(began.notified()).await;
    call.abort(); // drops the connection as well
    within(gone.notified()).await;
}

async fn deadline(way: Way) {
    let silent = tenant(async |_| std::future::pending::<Response<Empty<Bytes>>>().await).await;
    let mut place = Place::new(way, silent, &[("exec_timeout", "200ms")]).await;
    let response = place.line.call(post(any(full("work")))).await.unwrap();
    assert_eq!(response.headers()["x-nearpath-reason"], "exec_timeout");
    assert_eq!(response.status(), 504);
}

async fn an_instance_that_stops(way: Way) {
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
    let mut place = Place::new(way, tenant(slow).await, &[]).await;
    let mut line = place.line;
    let call = tokio::task::spawn_local(async move { whole(line.call(post(any(full("")))).await.unwrap()).await });
    reaching.recv().await.unwrap();
    place.watchdog.signal(Signal::TERM);
    place.watchdog.stderr.find("stopping");
    go.notify_one();
    assert_eq!(call.await.unwrap(), (200, "at last".into()));
    assert!(place.watchdog.ended().await.success());
}
