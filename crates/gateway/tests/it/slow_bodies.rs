//! Callers that send request bodies slowly must not hold places of functions.

use std::net::SocketAddr;

use http::Request;
use nearpath_gateway::GatewaySettings;
use nearpath_testkit::within;
use nearpath_types::FunctionPolicy;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::fixture::{
    TestGateway, collect_response, connect_http2, full_body, millis, start_mirror,
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
