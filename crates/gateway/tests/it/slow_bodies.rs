//! Callers that send request bodies slowly must not hold places of functions.

use std::net::SocketAddr;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use nearpath_gateway::GatewaySettings;
use nearpath_testkit::{eventually, within};
use nearpath_types::FunctionPolicy;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use crate::fixture::{
    TestGateway, collect_response, connect_http2, full_body, millis, send_and_collect,
    start_instance, start_mirror,
};
use crate::streams::body_channel;

/// Policy that refuses a request at once if the only place is taken.
fn one_place_policy() -> FunctionPolicy {
    FunctionPolicy {
        max_inflight: Some(1),
        queue: 0,
        ..FunctionPolicy::default()
    }
}

/// Sends a head and waits until the gateway reads the body, of which nothing comes.
async fn begin_body(addr: SocketAddr, framing: &str) -> TcpStream {
    let mut slow = TcpStream::connect(addr).await.unwrap();
    let head = format!(
        "POST /function/echo HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\n{framing}\r\n\r\n"
    );
    slow.write_all(head.as_bytes()).await.unwrap();
    let mut status = [0; 25];
    within(slow.read_exact(&mut status)).await.unwrap();
    assert_eq!(&status, b"HTTP/1.1 100 Continue\r\n\r\n");
    slow
}

#[tokio::test]
async fn bodies_that_do_not_come_take_no_place() {
    let fixture = TestGateway::start();
    fixture.publish_functions(&[("echo", one_place_policy(), &[start_mirror().await])]);
    let mut slow = Vec::new();
    for _ in 0..3 {
        slow.push(begin_body(fixture.public, "content-length: 9").await);
        // Of a long body, the first part is read before.
        slow.push(begin_body(fixture.public, "content-length: 1000000").await);
    }
    let client = connect_http2(fixture.public).await;
    let (write, body) = body_channel();
    let request = Request::post("http://a/function/echo").header("content-length", 3);
    let call = tokio::spawn(client.clone().send_request(request.body(body).unwrap()));
    for _ in 0..5 {
        assert_eq!(fixture.send_get("/function/echo").await.status, 200);
    }
    let mut finished = slow.swap_remove(0);
    finished.write_all(b"123456789").await.unwrap();
    let mut status = [0; 12];
    within(finished.read_exact(&mut status)).await.unwrap();
    assert_eq!(&status, b"HTTP/1.1 200");
    write
        .send(http_body::Frame::data(bytes::Bytes::from_static(b"abc")))
        .unwrap();
    drop(write);
    let answer = collect_response(within(call).await.unwrap().unwrap()).await;
    assert!(answer.body.ends_with("\n\nabc"), "{}", answer.body);
}

#[tokio::test]
async fn chunks_that_were_read_before_admission_reach_the_function() {
    let fixture = TestGateway::start();
    fixture.publish_functions(&[("echo", one_place_policy(), &[start_mirror().await])]);
    let mut client = begin_body(fixture.public, "transfer-encoding: chunked").await;
    for piece in ["3\r\nabc\r\n", "2\r\nde\r\n0\r\n\r\n"] {
        client.write_all(piece.as_bytes()).await.unwrap();
        tokio::task::yield_now().await;
    }
    let mut answer = Vec::new();
    while !answer.ends_with(b"\n\nabcde") {
        let read = within(client.read_buf(&mut answer)).await.unwrap();
        assert!(read > 0, "{}", String::from_utf8_lossy(&answer));
    }
}

#[tokio::test]
async fn a_long_body_is_complete_although_its_beginning_was_read_before() {
    let fixture = TestGateway::start();
    fixture.publish_functions(&[("echo", one_place_policy(), &[start_mirror().await])]);
    let body: String = (0..40_000).map(|n| format!("{n:07} ")).collect();
    let request = Request::post("/function/echo").body(full_body(body.clone()));
    let answer = crate::fixture::send_and_collect(fixture.public, request.unwrap()).await;
    assert!(answer.body.ends_with(&format!("\n\n{body}")));
}

#[tokio::test]
async fn a_body_below_the_minimum_rate_is_a_408() {
    let fixture = TestGateway::with_settings(GatewaySettings {
        min_body_rate: 1_000_000,
        min_rate_grace: millis(300),
        ..GatewaySettings::default()
    });
    fixture.publish_echo(start_mirror().await);
    // The first is read before a place is taken, the second while the instance has the request.
    for length in ["90000", "9000000"] {
        let slow = begin_body(fixture.public, &format!("content-length: {length}")).await;
        let (mut read, mut write) = slow.into_split();
        let drip = async {
            while write.write_all(b"x").await.is_ok() {
                tokio::time::sleep(millis(20)).await; // the slow body: a byte each time
            }
            std::future::pending::<()>().await;
        };
        let mut answer = [0; 12];
        tokio::select! {
            () = drip => {}
            read = within(read.read_exact(&mut answer)) => drop(read.unwrap()),
        }
        assert_eq!(&answer, b"HTTP/1.1 408", "{length}");
    }
}

/// Policy with one place, for which a request may wait a little.
fn waiting_policy() -> FunctionPolicy {
    FunctionPolicy {
        max_inflight: Some(1),
        queue_timeout: millis(5_000),
        ..FunctionPolicy::default()
    }
}

fn grpc_request() -> http::request::Builder {
    Request::post("http://a/function/echo").header("content-type", "application/grpc")
}

/// Starts an instance that reports the pieces of bodies, and answers at the end of each body. The
/// first piece of each is empty.
async fn start_reporter() -> (SocketAddr, mpsc::UnboundedReceiver<Bytes>) {
    let (seen, pieces) = mpsc::unbounded_channel();
    let addr = start_instance(move |request: Request<Incoming>| {
        let seen = seen.clone();
        async move {
            let (path, mut body) = (request.uri().to_string(), request.into_body());
            seen.send(Bytes::new()).unwrap();
            while let Some(Ok(frame)) = body.frame().await {
                let _ = seen.send(frame.into_data().unwrap_or_default());
            }
            Response::new(full_body(path))
        }
    })
    .await;
    (addr, pieces)
}

#[tokio::test]
async fn chunked_bodies_take_no_place_before_they_are_complete() {
    let fixture = TestGateway::start();
    fixture.publish_functions(&[("echo", one_place_policy(), &[start_mirror().await])]);
    let mut slow = begin_body(fixture.public, "transfer-encoding: chunked").await;
    slow.write_all(b"3\r\nabc\r\n").await.unwrap();
    // Longer than the beginning of a stream is waited for.
    let until = tokio::time::Instant::now() + millis(1_500);
    while tokio::time::Instant::now() < until {
        assert_eq!(fixture.send_get("/function/echo").await.status, 200);
    }
    slow.write_all(b"0\r\n\r\n").await.unwrap();
    let mut status = [0; 12];
    within(slow.read_exact(&mut status)).await.unwrap();
    assert_eq!(&status, b"HTTP/1.1 200");
}

#[tokio::test]
async fn a_grpc_call_takes_a_place_with_its_first_message() {
    let fixture = TestGateway::start();
    let (addr, mut pieces) = start_reporter().await;
    fixture.publish_functions(&[("echo", one_place_policy(), &[addr])]);
    let mut client = connect_http2(fixture.public).await;
    let (write, body) = body_channel();
    write
        .send(Frame::data(Bytes::from_static(b"\0\0\0\0\x06abc")))
        .unwrap();
    let call = tokio::spawn(client.send_request(grpc_request().body(body).unwrap()));
    for _ in 0..5 {
        let get = Request::get("http://a/function/echo").body(full_body(""));
        let answer = within(client.send_request(get.unwrap())).await.unwrap();
        assert_eq!(answer.status(), 200, "the place is free");
        assert_eq!(pieces.recv().await.unwrap(), "");
    }
    write.send(Frame::data(Bytes::from_static(b"def"))).unwrap();
    assert_eq!(within(pieces.recv()).await.unwrap(), "");
    assert_eq!(
        within(pieces.recv()).await.unwrap().as_ref(),
        b"\0\0\0\0\x06abcdef"
    );
    drop(write);
    assert_eq!(within(call).await.unwrap().unwrap().status(), 200);
}

#[tokio::test]
async fn a_grpc_call_without_a_message_has_a_minimum_rate() {
    let fixture = TestGateway::with_settings(GatewaySettings {
        min_body_rate: 1_000_000,
        min_rate_grace: millis(300),
        ..GatewaySettings::default()
    });
    fixture.publish_functions(&[("echo", one_place_policy(), &[start_mirror().await])]);
    let mut client = connect_http2(fixture.public).await;
    let (_silent, body) = body_channel();
    let call = client.send_request(grpc_request().body(body).unwrap());
    let answer = within(call).await.unwrap();
    assert!(answer.headers()["grpc-status"] != "0", "{answer:?}");
}

#[tokio::test]
async fn a_grpc_caller_may_wait_for_the_head_of_the_response() {
    let fixture = TestGateway::with_settings(GatewaySettings {
        min_rate_grace: millis(2_500),
        ..GatewaySettings::default()
    });
    let addr = start_instance(async |request: Request<Incoming>| {
        let body = request.into_body().map_err(|_| unreachable!());
        let response = Response::builder().header("content-type", "application/grpc");
        response.body(body.boxed_unsync()).unwrap()
    });
    fixture.publish_functions(&[("echo", one_place_policy(), &[addr.await])]);
    let mut client = connect_http2(fixture.public).await;
    let (write, body) = body_channel();
    let answer = within(client.send_request(grpc_request().body(body).unwrap()));
    let mut answer = answer.await.unwrap();
    write
        .send(Frame::data(Bytes::from_static(b"message")))
        .unwrap();
    let echoed = within(answer.frame()).await.unwrap().unwrap();
    assert_eq!(echoed.into_data().unwrap(), "message");
}

#[tokio::test]
async fn a_caller_that_sends_nothing_gives_its_place_to_one_that_waits() {
    let fixture = TestGateway::start();
    let (addr, mut pieces) = start_reporter().await;
    fixture.publish_functions(&[("echo", waiting_policy(), &[addr])]);
    let mut client = connect_http2(fixture.public).await;
    let (_silent, body) = body_channel();
    let call = client.send_request(grpc_request().body(body).unwrap());
    let call = tokio::spawn(call);
    within(pieces.recv()).await.unwrap();
    assert_eq!(fixture.send_get("/function/echo").await.status, 200);
    let cut = within(call).await.unwrap().unwrap();
    assert!(cut.headers()["grpc-status"] != "0", "{cut:?}");
}

#[tokio::test]
async fn a_caller_that_sends_nothing_waits_no_longer_than_the_queue_timeout() {
    let fixture = TestGateway::start();
    let (addr, mut pieces) = start_reporter().await;
    let policy = FunctionPolicy {
        queue_timeout: millis(1),
        ..one_place_policy()
    };
    fixture.publish_functions(&[("echo", policy, &[addr])]);
    let client = connect_http2(fixture.public).await;
    let ((_silent, body), (_other, other_body)) = (body_channel(), body_channel());
    let send = |body| {
        let request = grpc_request().body(body).unwrap();
        tokio::spawn(client.clone().send_request(request))
    };
    let holder = send(body);
    within(pieces.recv()).await.unwrap();
    let refused = within(send(other_body)).await.unwrap().unwrap();
    assert_eq!(refused.headers()["x-nearpath-reason"], "queue_timeout");
    holder.abort();
}

#[tokio::test]
async fn a_long_slow_upload_gives_its_place_to_one_that_waits() {
    let fixture = TestGateway::start();
    let (addr, mut pieces) = start_reporter().await;
    fixture.publish_functions(&[("echo", waiting_policy(), &[addr])]);
    let mut slow = begin_body(fixture.public, "content-length: 100000000").await;
    // More than is read before the request asks for a place.
    within(slow.write_all(&vec![b'x'; 2 << 20])).await.unwrap();
    within(pieces.recv()).await.unwrap();
    let request = Request::get("/function/echo").body(full_body("")).unwrap();
    let answer = send_and_collect(fixture.public, request).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let mut status = [0; 12];
    within(slow.read_exact(&mut status)).await.unwrap();
    assert_eq!(&status, b"HTTP/1.1 408");
}

#[tokio::test]
async fn a_long_body_takes_the_only_place_when_it_is_complete() {
    let (fixture, _folder) = TestGateway::with_spool();
    fixture.publish_functions(&[("echo", one_place_policy(), &[start_mirror().await])]);
    let body: String = (0..500_000).map(|n| format!("{n:07} ")).collect();
    let (first, second) = body.split_at(3_000_000);
    let mut client = connect_http2(fixture.public).await;
    let (write, arriving) = body_channel();
    let request = Request::post("http://a/function/echo").body(arriving);
    let call = tokio::spawn(client.send_request(request.unwrap()));
    let send = |part: &str| write.send(Frame::data(Bytes::copy_from_slice(part.as_bytes())));
    send(first).unwrap();
    eventually("a part is in the file", async || {
        fixture.spooled_bytes() > 1_000_000
    })
    .await;
    for _ in 0..5 {
        let other = fixture.send_get("/function/echo").await;
        assert_eq!(other.status, 200, "the place is free");
    }
    send(second).unwrap();
    drop(write);
    let answer = collect_response(within(call).await.unwrap().unwrap()).await;
    assert!(answer.body.ends_with(&format!("\n\n{body}")), "other bytes");
    eventually("the file is gone", async || fixture.spooled_bytes() == 0).await;
}

#[tokio::test]
async fn long_bodies_hold_half_of_the_places_while_they_arrive() {
    let (fixture, _folder) = TestGateway::with_spool();
    let (addr, mut pieces) = start_reporter().await;
    let policy = FunctionPolicy {
        max_inflight: Some(2),
        ..one_place_policy()
    };
    fixture.publish_functions(&[("echo", policy, &[addr])]);
    let mut client = connect_http2(fixture.public).await;
    let mut begin = || {
        let (write, body) = body_channel();
        let long = Request::post("http://a/function/echo").body(body).unwrap();
        write.send(Frame::data(vec![b'x'; 70_000].into())).unwrap();
        (write, tokio::spawn(client.send_request(long)))
    };
    let (first, first_call) = begin();
    assert_eq!(within(pieces.recv()).await.unwrap(), "", "it has a place");
    let mut seen = 0;
    while seen < 70_000 {
        seen += within(pieces.recv()).await.unwrap().len();
    }
    let (second, second_call) = begin();
    for _ in 0..5 {
        assert_eq!(fixture.send_get("/function/echo").await.status, 200);
        let only = within(pieces.recv()).await.unwrap();
        assert_eq!(only, "", "nothing of the second body");
    }
    drop(first);
    assert_eq!(within(first_call).await.unwrap().unwrap().status(), 200);
    second.send(Frame::data(Bytes::from_static(b"y"))).unwrap();
    let mut seen = 0;
    while seen < 70_001 {
        seen += within(pieces.recv()).await.unwrap().len();
    }
    drop(second);
    assert_eq!(within(second_call).await.unwrap().unwrap().status(), 200);
}

#[tokio::test]
async fn the_file_of_a_body_whose_caller_leaves_is_freed() {
    let (fixture, _folder) = TestGateway::with_spool();
    fixture.publish_functions(&[("echo", one_place_policy(), &[start_mirror().await])]);
    let mut slow = begin_body(fixture.public, "content-length: 100000000").await;
    within(slow.write_all(&vec![b'x'; 3 << 20])).await.unwrap();
    eventually("a part is in the file", async || {
        fixture.spooled_bytes() > 0
    })
    .await;
    drop(slow);
    eventually("the file is gone", async || fixture.spooled_bytes() == 0).await;
}

#[tokio::test]
async fn a_slow_reader_of_a_long_response_gives_its_place_to_one_that_waits() {
    let fixture = TestGateway::start();
    let addr = start_instance(async |request: Request<Incoming>| {
        let is_long = request.uri().query().is_some();
        let bytes = if is_long { 16 << 20 } else { 1 };
        Response::new(full_body(vec![b'x'; bytes]))
    });
    fixture.publish_functions(&[("echo", waiting_policy(), &[addr.await])]);
    let mut client = crate::fixture::connect_http2_with_window(fixture.public, 0).await;
    let long = Request::get("http://a/function/echo?long").body(full_body(""));
    let unread = within(client.send_request(long.unwrap())).await.unwrap();
    let answer = fixture.send_get("/function/echo").await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    drop(unread);
}
