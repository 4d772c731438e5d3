//! Bodies that flow: both ways, with trailers, as events, upgraded.

use std::convert::Infallible;

use bytes::Bytes;
use futures_util::StreamExt;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use nearpath_testkit::within;
use nearpath_types::Policy;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;

use crate::house::{House, TestBody, full, h2, ms, send, serving};

pub(crate) type Pieces = mpsc::UnboundedSender<Frame<Bytes>>;

/// A body that is written piece by piece.
pub(crate) fn pieces() -> (Pieces, TestBody) {
    let (send, receive) = mpsc::unbounded_channel::<Frame<Bytes>>();
    let frames = futures_util::stream::unfold(receive, async |mut receive| Some((receive.recv().await?, receive)));
    (send, StreamBody::new(frames.map(Ok::<_, Infallible>)).boxed_unsync())
}

fn data(text: &'static str) -> Frame<Bytes> {
    Frame::data(Bytes::from_static(text.as_bytes()))
}

async fn next(body: &mut Incoming) -> String {
    let frame = within(body.frame()).await.unwrap().unwrap();
    String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap()
}

/// Sends back what comes, as it comes.
async fn parrot() -> std::net::SocketAddr {
    serving(async |request: Request<Incoming>| {
        let kind = request.headers().get("content-type").cloned();
        let mut response = Response::new(request.into_body().map_err(|_| unreachable!()).boxed_unsync());
        if let Some(kind) = kind {
            response.headers_mut().insert("content-type", kind);
        }
        response
    })
    .await
}

#[tokio::test]
async fn both_directions_at_the_same_time() {
    let house = House::open();
    house.echo(parrot().await);
    let (write, body) = pieces();
    write.send(data("one")).unwrap();
    let response = send(house.public, Request::post("/function/echo").body(body).unwrap()).await.unwrap();
    let mut answer = response.into_body();
    assert_eq!(next(&mut answer).await, "one");
    write.send(data("two")).unwrap();
    assert_eq!(next(&mut answer).await, "two");
    drop(write);
    assert!(within(answer.frame()).await.is_none());
}

#[tokio::test]
async fn events_arrive_one_by_one_and_outlive_the_total_timeout() {
    let (write, body) = pieces();
    let body = std::sync::Arc::new(std::sync::Mutex::new(Some(body)));
    let at = serving(move |_| {
        let body = body.lock().unwrap().take().unwrap();
        async { Response::builder().header("content-type", "text/event-stream").body(body).unwrap() }
    })
    .await;
    let house = House::open();
    house.publish(&[("echo", Policy { total_timeout: ms(200), ..Policy::default() }, &[at])]);
    let request = Request::get("/function/echo").header("accept", "text/event-stream").body(full("")).unwrap();
    let mut answer = send(house.public, request).await.unwrap().into_body();
    write.send(data("data: 1\n\n")).unwrap();
    assert_eq!(next(&mut answer).await, "data: 1\n\n");
    tokio::time::sleep(ms(300)).await; // what is tested is that nothing happens in this time
    write.send(data("data: 2\n\n")).unwrap();
    assert_eq!(next(&mut answer).await, "data: 2\n\n");
    drop(write);
    assert!(within(answer.frame()).await.is_none());
}

fn trailers(name: &'static str, value: &'static str) -> Frame<Bytes> {
    let mut map = HeaderMap::new();
    map.insert(name, value.parse().unwrap());
    Frame::trailers(map)
}

#[tokio::test]
async fn grpc_goes_over_http_2_with_trailers_both_ways() {
    let at = serving(async |request: Request<Incoming>| {
        assert_eq!(request.version(), http::Version::HTTP_2);
        assert_eq!(request.headers()["te"], "trailers");
        let collected = request.into_body().collect().await.unwrap();
        assert_eq!(collected.trailers().unwrap()["x-sum"], "7");
        let (write, body) = pieces();
        write.send(Frame::data(collected.to_bytes())).unwrap();
        write.send(trailers("grpc-status", "0")).unwrap();
        Response::builder().header("content-type", "application/grpc").body(body).unwrap()
    })
    .await;
    let house = House::open();
    house.echo(at);
    let mut client = h2(house.public).await;
    for _ in 0..3 {
        let (write, body) = pieces();
        write.send(data("message")).unwrap();
        write.send(trailers("x-sum", "7")).unwrap();
        drop(write);
        let request = Request::post("http://shop.example/function/echo/pkg.Svc/Call")
            .header("content-type", "application/grpc+proto")
            .header("te", "trailers")
            .body(body)
            .unwrap();
        let answer = crate::house::finish(within(client.send_request(request)).await.unwrap()).await;
        assert_eq!((answer.status, answer.body.as_str()), (200, "message"));
        assert_eq!(answer.trailers.unwrap()["grpc-status"], "0");
    }
}

fn grpc(uri: &str) -> http::request::Builder {
    Request::post(uri).header("content-type", "application/grpc").header("te", "trailers")
}

#[tokio::test]
async fn the_platforms_errors_are_grpc_to_grpc_callers() {
    let house = House::open();
    house.publish(&[("asleep", Policy { cold_timeout: ms(50), ..Policy::default() }, &[])]);
    let mut client = h2(house.public).await;
    for (uri, status) in [
        ("http://a/function/missing/p.S/M", "12"),
        ("http://missing/p.S/M", "12"),
        ("http://a/function/asleep/p.S/M", "14"),
    ] {
        let answer = within(client.send_request(grpc(uri).body(full("")).unwrap())).await.unwrap();
        assert_eq!(answer.status(), 200, "{uri}");
        assert_eq!(answer.headers()["content-type"], "application/grpc");
        assert_eq!(answer.headers()["grpc-status"], status, "{uri}");
        assert!(answer.headers()["grpc-message"].to_str().unwrap().starts_with("gateway: "));
    }
}

#[tokio::test]
async fn the_authority_names_a_grpc_callers_function() {
    let house = House::open();
    let at = serving(async |request: Request<Incoming>| {
        Response::builder()
            .header("content-type", "application/grpc")
            .body(full(request.uri().path().to_owned()))
            .unwrap()
    });
    house.echo(at.await);
    let mut client = h2(house.public).await;
    for authority in ["echo", "echo.openfaas-fn", "echo:8080"] {
        let uri = format!("http://{authority}/p.S/Method");
        let answer = within(client.send_request(grpc(&uri).body(full("")).unwrap())).await.unwrap();
        assert_eq!(crate::house::finish(answer).await.body, "/p.S/Method", "{authority}");
    }
}

#[tokio::test]
async fn a_grpc_stream_outlives_the_total_timeout_but_not_the_callers() {
    let house = House::open();
    let at = serving(async |_| {
        let (write, body) = pieces();
        tokio::spawn(async move {
            for _ in 0..20 {
                tokio::time::sleep(ms(100)).await;
                let _ = write.send(data("."));
            }
        });
        Response::builder().header("content-type", "application/grpc").body(body).unwrap()
    });
    house.publish(&[("echo", Policy { total_timeout: ms(500), ..Policy::default() }, &[at.await])]);
    let mut client = h2(house.public).await;
    let patient = grpc("http://echo/p.S/M").body(full("")).unwrap();
    let whole = within(client.send_request(patient)).await.unwrap();
    assert_eq!(crate::house::finish(whole).await.body.len(), 20);
    let hasty = grpc("http://echo/p.S/M").header("grpc-timeout", "400m").body(full("")).unwrap();
    let cut = within(client.send_request(hasty)).await.unwrap();
    let cut = within(cut.into_body().collect()).await.unwrap();
    assert_eq!(cut.trailers().unwrap()["grpc-status"], "4", "{:?}", cut.trailers());
}

#[tokio::test]
async fn many_grpc_streams_share_connections() {
    let at = serving(async |request: Request<Incoming>| {
        let body = request.into_body().collect().await.unwrap().to_bytes();
        Response::builder().header("content-type", "application/grpc").body(full(body)).unwrap()
    })
    .await;
    let house = House::open();
    house.echo(at);
    let client = h2(house.public).await;
    let calls = (0..150).map(|_| {
        let mut client = client.clone();
        let request = Request::post("http://a/function/echo").header("content-type", "application/grpc");
        async move { client.send_request(request.body(full("x")).unwrap()).await.unwrap().status() }
    });
    let all = within(futures_util::future::join_all(calls)).await;
    assert!(all.iter().all(|status| *status == 200));
}

#[tokio::test]
async fn http_1_trailers_pass() {
    let at = serving(async |_| {
        let (write, body) = pieces();
        write.send(data("body")).unwrap();
        write.send(trailers("x-sum", "9")).unwrap();
        Response::builder().header("trailer", "x-sum").body(body).unwrap()
    })
    .await;
    let house = House::open();
    house.echo(at);
    let request = Request::get("/function/echo").header("te", "trailers").body(full("")).unwrap();
    let answer = crate::house::ask(house.public, request).await;
    assert_eq!(answer.trailers.unwrap()["x-sum"], "9");
}

/// Upgrades to a protocol that sends back upper case.
async fn shouter() -> std::net::SocketAddr {
    serving(async |mut request: Request<Incoming>| {
        assert_eq!(request.headers()["upgrade"], "websocket");
        assert_eq!(request.headers()["connection"], "upgrade");
        let upgraded = hyper::upgrade::on(&mut request);
        tokio::spawn(async move {
            let mut io = TokioIo::new(upgraded.await.unwrap());
            let mut buffer = [0; 64];
            while let Ok(n @ 1..) = io.read(&mut buffer).await {
                io.write_all(buffer[..n].to_ascii_uppercase().as_slice()).await.unwrap();
            }
        });
        let switch = Response::builder().status(StatusCode::SWITCHING_PROTOCOLS);
        switch.header("connection", "upgrade").header("upgrade", "websocket").body(full("")).unwrap()
    })
    .await
}

fn upgrade_request() -> Request<TestBody> {
    let request = Request::get("/function/echo/ws").header("connection", "Upgrade");
    request.header("upgrade", "websocket").body(full("")).unwrap()
}

#[tokio::test]
async fn an_upgraded_connection_is_a_tunnel_and_counts_until_closed() {
    let house = House::open();
    let policy = Policy { total_timeout: ms(100), ..Policy::default() };
    house.publish(&[("echo", policy, &[shouter().await])]);
    let response = send(house.public, upgrade_request()).await.unwrap();
    assert_eq!(response.status(), 101);
    assert_eq!(response.headers()["upgrade"], "websocket");
    let mut io = TokioIo::new(hyper::upgrade::on(response).await.unwrap());
    tokio::time::sleep(ms(200)).await; // longer than the total timeout, which does not apply
    let mut heard = [0; 5];
    io.write_all(b"hello").await.unwrap();
    within(io.read_exact(&mut heard)).await.unwrap();
    assert_eq!(&heard, b"HELLO");
    assert!(house.metrics().contains(r#"nearpath_inflight{function_name="echo.openfaas-fn"} 1"#));
    drop(io);
    nearpath_testkit::eventually("the tunnel is recorded", async || !house.log.all().is_empty()).await;
    let line = &house.log.all()[0];
    assert_eq!((line["status"].as_u64(), line["bytes_out"].as_u64()), (Some(101), Some(5)), "{line}");
}

#[tokio::test]
async fn a_silent_tunnel_is_cut() {
    let house = House::open();
    house.publish(&[("echo", Policy { idle_timeout: ms(100), ..Policy::default() }, &[shouter().await])]);
    let response = send(house.public, upgrade_request()).await.unwrap();
    let mut io = TokioIo::new(hyper::upgrade::on(response).await.unwrap());
    let mut rest = Vec::new();
    let _ = within(io.read_to_end(&mut rest)).await;
    nearpath_testkit::eventually("the tunnel is recorded", async || !house.log.all().is_empty()).await;
    assert_eq!(house.log.all()[0]["reason"], "idle_timeout");
}

#[tokio::test]
async fn an_upgrade_that_is_declined_is_an_answer() {
    let house = House::open();
    house.echo(serving(async |_| Response::new(full("no"))).await);
    let response = send(house.public, upgrade_request()).await.unwrap();
    assert_eq!(response.status(), 200);
}
