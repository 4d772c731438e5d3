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
use nearpath_types::FunctionPolicy;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;

use crate::fixture::{
    TestBody, TestGateway, connect_http2, full_body, millis, send_request, start_instance,
};

pub(crate) type FrameSender = mpsc::UnboundedSender<Frame<Bytes>>;

/// Creates a body that is written frame by frame.
pub(crate) fn body_channel() -> (FrameSender, TestBody) {
    let (send, receive) = mpsc::unbounded_channel::<Frame<Bytes>>();
    let frames = futures_util::stream::unfold(receive, async |mut receive| {
        Some((receive.recv().await?, receive))
    });
    (
        send,
        StreamBody::new(frames.map(Ok::<_, Infallible>)).boxed_unsync(),
    )
}

fn data_frame(text: &'static str) -> Frame<Bytes> {
    Frame::data(Bytes::from_static(text.as_bytes()))
}

async fn next_text(body: &mut Incoming) -> String {
    let frame = within(body.frame()).await.unwrap().unwrap();
    String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap()
}

/// Starts an instance that streams the request body back.
async fn start_echo() -> std::net::SocketAddr {
    start_instance(async |request: Request<Incoming>| {
        let kind = request.headers().get("content-type").cloned();
        let mut response = Response::new(
            request
                .into_body()
                .map_err(|_| unreachable!())
                .boxed_unsync(),
        );
        if let Some(kind) = kind {
            response.headers_mut().insert("content-type", kind);
        }
        response
    })
    .await
}

#[tokio::test]
async fn both_directions_flow_at_the_same_time() {
    let fixture = TestGateway::start();
    fixture.publish_echo(start_echo().await);
    let (write, body) = body_channel();
    write.send(data_frame("one")).unwrap();
    let response = send_request(
        fixture.public,
        Request::post("/function/echo").body(body).unwrap(),
    )
    .await
    .unwrap();
    let mut answer = response.into_body();
    assert_eq!(next_text(&mut answer).await, "one");
    write.send(data_frame("two")).unwrap();
    assert_eq!(next_text(&mut answer).await, "two");
    drop(write);
    assert!(within(answer.frame()).await.is_none());
}

#[tokio::test]
async fn events_arrive_one_by_one_and_outlive_the_total_timeout() {
    let (write, body) = body_channel();
    let body = std::sync::Arc::new(std::sync::Mutex::new(Some(body)));
    let addr = start_instance(move |_| {
        let body = body.lock().unwrap().take().unwrap();
        async {
            Response::builder()
                .header("content-type", "text/event-stream")
                .body(body)
                .unwrap()
        }
    })
    .await;
    let fixture = TestGateway::start();
    fixture.publish_functions(&[(
        "echo",
        FunctionPolicy {
            total_timeout: millis(200),
            ..FunctionPolicy::default()
        },
        &[addr],
    )]);
    let request = Request::get("/function/echo")
        .header("accept", "text/event-stream")
        .body(full_body(""))
        .unwrap();
    let mut answer = send_request(fixture.public, request)
        .await
        .unwrap()
        .into_body();
    write.send(data_frame("data: 1\n\n")).unwrap();
    assert_eq!(next_text(&mut answer).await, "data: 1\n\n");
    tokio::time::sleep(millis(300)).await; // what is tested is that nothing happens in this time
    write.send(data_frame("data: 2\n\n")).unwrap();
    assert_eq!(next_text(&mut answer).await, "data: 2\n\n");
    drop(write);
    assert!(within(answer.frame()).await.is_none());
}

pub(crate) fn trailer_frame(name: &'static str, value: &'static str) -> Frame<Bytes> {
    let mut map = HeaderMap::new();
    map.insert(name, value.parse().unwrap());
    Frame::trailers(map)
}

#[tokio::test]
async fn grpc_goes_over_http_2_with_trailers_both_ways() {
    let addr = start_instance(async |request: Request<Incoming>| {
        assert_eq!(request.version(), http::Version::HTTP_2);
        assert_eq!(request.headers()["te"], "trailers");
        let collected = request.into_body().collect().await.unwrap();
        assert_eq!(collected.trailers().unwrap()["x-sum"], "7");
        let (write, body) = body_channel();
        write.send(Frame::data(collected.to_bytes())).unwrap();
        write.send(trailer_frame("grpc-status", "0")).unwrap();
        Response::builder()
            .header("content-type", "application/grpc")
            .body(body)
            .unwrap()
    })
    .await;
    let fixture = TestGateway::start();
    fixture.publish_echo(addr);
    let mut client = connect_http2(fixture.public).await;
    for _ in 0..3 {
        let (write, body) = body_channel();
        write.send(data_frame("message")).unwrap();
        write.send(trailer_frame("x-sum", "7")).unwrap();
        drop(write);
        let request = Request::post("http://shop.example/function/echo/pkg.Svc/Call")
            .header("content-type", "application/grpc+proto")
            .header("te", "trailers")
            .body(body)
            .unwrap();
        let answer =
            crate::fixture::collect_response(within(client.send_request(request)).await.unwrap())
                .await;
        assert_eq!((answer.status, answer.body.as_str()), (200, "message"));
        assert_eq!(answer.trailers.unwrap()["grpc-status"], "0");
    }
}

fn grpc_request(uri: &str) -> http::request::Builder {
    Request::post(uri)
        .header("content-type", "application/grpc")
        .header("te", "trailers")
}

#[tokio::test]
async fn the_platforms_errors_are_grpc_to_grpc_callers() {
    let fixture = TestGateway::start();
    fixture.publish_functions(&[(
        "asleep",
        FunctionPolicy {
            cold_timeout: millis(50),
            ..FunctionPolicy::default()
        },
        &[],
    )]);
    let mut client = connect_http2(fixture.public).await;
    for (uri, status) in [
        ("http://a/function/missing/p.S/M", "12"),
        ("http://missing/p.S/M", "12"),
        ("http://a/function/asleep/p.S/M", "14"),
    ] {
        let answer = within(client.send_request(grpc_request(uri).body(full_body("")).unwrap()))
            .await
            .unwrap();
        assert_eq!(answer.status(), 200, "{uri}");
        assert_eq!(answer.headers()["content-type"], "application/grpc");
        assert_eq!(answer.headers()["grpc-status"], status, "{uri}");
        assert!(
            answer.headers()["grpc-message"]
                .to_str()
                .unwrap()
                .starts_with("gateway: ")
        );
    }
}

#[tokio::test]
async fn the_authority_names_a_grpc_callers_function() {
    let fixture = TestGateway::start();
    let addr = start_instance(async |request: Request<Incoming>| {
        Response::builder()
            .header("content-type", "application/grpc")
            .body(full_body(request.uri().path().to_owned()))
            .unwrap()
    });
    fixture.publish_echo(addr.await);
    let mut client = connect_http2(fixture.public).await;
    for authority in ["echo", "echo.openfaas-fn", "echo:8080"] {
        let uri = format!("http://{authority}/p.S/Method");
        let answer = within(client.send_request(grpc_request(&uri).body(full_body("")).unwrap()))
            .await
            .unwrap();
        assert_eq!(
            crate::fixture::collect_response(answer).await.body,
            "/p.S/Method",
            "{authority}"
        );
    }
}

#[tokio::test]
async fn a_grpc_stream_outlives_the_total_timeout_but_not_the_callers() {
    let fixture = TestGateway::start();
    let addr = start_instance(async |_| {
        let (write, body) = body_channel();
        tokio::spawn(async move {
            for _ in 0..20 {
                tokio::time::sleep(millis(100)).await; // 2 s in all, beyond the total timeout
                let _ = write.send(data_frame("."));
            }
        });
        Response::builder()
            .header("content-type", "application/grpc")
            .body(body)
            .unwrap()
    });
    fixture.publish_functions(&[(
        "echo",
        FunctionPolicy {
            total_timeout: millis(500),
            ..FunctionPolicy::default()
        },
        &[addr.await],
    )]);
    let mut client = connect_http2(fixture.public).await;
    let without_timeout = grpc_request("http://echo/p.S/M")
        .body(full_body(""))
        .unwrap();
    let whole = within(client.send_request(without_timeout)).await.unwrap();
    assert_eq!(crate::fixture::collect_response(whole).await.body.len(), 20);
    let with_timeout = grpc_request("http://echo/p.S/M")
        .header("grpc-timeout", "400m")
        .body(full_body(""))
        .unwrap();
    let cut = within(client.send_request(with_timeout)).await.unwrap();
    let cut = within(cut.into_body().collect()).await.unwrap();
    assert_eq!(
        cut.trailers().unwrap()["grpc-status"],
        "4",
        "{:?}",
        cut.trailers()
    );
}

#[tokio::test]
async fn many_grpc_streams_share_connections() {
    let addr = start_instance(async |request: Request<Incoming>| {
        let body = request.into_body().collect().await.unwrap().to_bytes();
        Response::builder()
            .header("content-type", "application/grpc")
            .body(full_body(body))
            .unwrap()
    })
    .await;
    let fixture = TestGateway::start();
    fixture.publish_echo(addr);
    let client = connect_http2(fixture.public).await;
    let calls = (0..150).map(|_| {
        let mut client = client.clone();
        let request =
            Request::post("http://a/function/echo").header("content-type", "application/grpc");
        async move {
            client
                .send_request(request.body(full_body("x")).unwrap())
                .await
                .unwrap()
                .status()
        }
    });
    let all = within(futures_util::future::join_all(calls)).await;
    assert!(all.iter().all(|status| *status == 200));
}

#[tokio::test]
async fn http_1_trailers_are_passed_on() {
    let addr = start_instance(async |_| {
        let (write, body) = body_channel();
        write.send(data_frame("body")).unwrap();
        write.send(trailer_frame("x-sum", "9")).unwrap();
        Response::builder()
            .header("trailer", "x-sum")
            .body(body)
            .unwrap()
    })
    .await;
    let fixture = TestGateway::start();
    fixture.publish_echo(addr);
    let request = Request::get("/function/echo")
        .header("te", "trailers")
        .body(full_body(""))
        .unwrap();
    let answer = crate::fixture::send_and_collect(fixture.public, request).await;
    assert_eq!(answer.trailers.unwrap()["x-sum"], "9");
}

/// Starts an instance that upgrades to a protocol which answers in upper case.
async fn start_upper_case_upgrade() -> std::net::SocketAddr {
    start_instance(async |mut request: Request<Incoming>| {
        assert_eq!(request.headers()["upgrade"], "websocket");
        assert_eq!(request.headers()["connection"], "upgrade");
        let upgraded = hyper::upgrade::on(&mut request);
        tokio::spawn(async move {
            let mut io = TokioIo::new(upgraded.await.unwrap());
            let mut buffer = [0; 64];
            while let Ok(n @ 1..) = io.read(&mut buffer).await {
                io.write_all(buffer[..n].to_ascii_uppercase().as_slice())
                    .await
                    .unwrap();
            }
        });
        let switch = Response::builder().status(StatusCode::SWITCHING_PROTOCOLS);
        switch
            .header("connection", "upgrade")
            .header("upgrade", "websocket")
            .body(full_body(""))
            .unwrap()
    })
    .await
}

fn upgrade_request() -> Request<TestBody> {
    let request = Request::get("/function/echo/ws").header("connection", "Upgrade");
    request
        .header("upgrade", "websocket")
        .body(full_body(""))
        .unwrap()
}

#[tokio::test]
async fn an_upgraded_connection_is_a_tunnel_and_counts_until_closed() {
    let fixture = TestGateway::start();
    let policy = FunctionPolicy {
        total_timeout: millis(100),
        ..FunctionPolicy::default()
    };
    fixture.publish_functions(&[("echo", policy, &[start_upper_case_upgrade().await])]);
    let response = send_request(fixture.public, upgrade_request())
        .await
        .unwrap();
    assert_eq!(response.status(), 101);
    assert_eq!(response.headers()["upgrade"], "websocket");
    let mut io = TokioIo::new(hyper::upgrade::on(response).await.unwrap());
    tokio::time::sleep(millis(200)).await; // longer than the total timeout, which does not apply
    let mut received = [0; 5];
    io.write_all(b"hello").await.unwrap();
    within(io.read_exact(&mut received)).await.unwrap();
    assert_eq!(&received, b"HELLO");
    assert!(
        fixture
            .encode_metrics()
            .contains(r#"nearpath_inflight{function_name="echo.openfaas-fn"} 1"#)
    );
    drop(io);
    nearpath_testkit::eventually("the tunnel is recorded", async || {
        !fixture.log.parse_lines().is_empty()
    })
    .await;
    let line = &fixture.log.parse_lines()[0];
    assert_eq!(
        (line["status"].as_u64(), line["bytes_out"].as_u64()),
        (Some(101), Some(5)),
        "{line}"
    );
}

#[tokio::test]
async fn a_silent_tunnel_is_cut() {
    let fixture = TestGateway::start();
    fixture.publish_functions(&[(
        "echo",
        FunctionPolicy {
            idle_timeout: millis(100),
            ..FunctionPolicy::default()
        },
        &[start_upper_case_upgrade().await],
    )]);
    let response = send_request(fixture.public, upgrade_request())
        .await
        .unwrap();
    let mut io = TokioIo::new(hyper::upgrade::on(response).await.unwrap());
    let mut rest = Vec::new();
    let _ = within(io.read_to_end(&mut rest)).await;
    nearpath_testkit::eventually("the tunnel is recorded", async || {
        !fixture.log.parse_lines().is_empty()
    })
    .await;
    assert_eq!(fixture.log.parse_lines()[0]["reason"], "idle_timeout");
}

#[tokio::test]
async fn a_declined_upgrade_is_an_ordinary_response() {
    let fixture = TestGateway::start();
    fixture.publish_echo(start_instance(async |_| Response::new(full_body("no"))).await);
    let response = send_request(fixture.public, upgrade_request())
        .await
        .unwrap();
    assert_eq!(response.status(), 200);
}
