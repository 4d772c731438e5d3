//! Plain and other requests on the same connections.

use bytes::Bytes;
use http::Response;
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::fixture::{TestGateway, full_body, read_head, send_raw, start_instance};

/// Answers with the request's path and body.
async fn start_reporting_instance() -> std::net::SocketAddr {
    start_instance(async |request| {
        let path = request.uri().path().to_owned();
        let body = request.into_body().collect().await.unwrap().to_bytes();
        Response::new(full_body(format!(
            "<{path} {}>",
            String::from_utf8_lossy(&body)
        )))
    })
    .await
}

fn collect_bodies(answers: &str) -> String {
    answers
        .split('<')
        .skip(1)
        .filter_map(|part| part.split('>').next())
        .collect::<Vec<_>>()
        .join(",")
}

#[tokio::test]
async fn plain_and_other_requests_are_answered_in_their_order() {
    let fixture = TestGateway::start();
    fixture.publish_echo(start_reporting_instance().await);
    let plain = "POST /function/echo/1 HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\nhi";
    let chunked = "POST /function/echo/2 HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n2\r\nho\r\n0\r\n\r\n";
    let last = "GET /function/echo/3 HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
    for (order, expected) in [
        (vec![plain, plain, last], "/1 hi,/1 hi,/3 "),
        (vec![plain, chunked, plain, last], "/1 hi,/2 ho,/1 hi,/3 "),
        (vec![chunked, plain, last], "/2 ho,/1 hi,/3 "),
        (vec![last, plain], "/3 "),
    ] {
        let answers = send_raw(fixture.public, order.concat().as_bytes()).await;
        assert_eq!(collect_bodies(&answers), expected, "{answers}");
        assert_eq!(
            answers.matches("\r\nconnection: close\r\n").count(),
            1,
            "{answers}"
        );
    }
}

#[tokio::test]
async fn a_request_in_single_bytes_is_answered() {
    let fixture = TestGateway::start();
    fixture.publish_echo(start_reporting_instance().await);
    let mut stream = TcpStream::connect(fixture.public).await.unwrap();
    stream.set_nodelay(true).unwrap();
    for byte in b"POST /function/echo/1 HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\nconnection: close\r\n\r\nhi" {
        stream.write_all(&[*byte]).await.unwrap();
        tokio::task::yield_now().await;
    }
    let mut answer = String::new();
    nearpath_testkit::within(stream.read_to_string(&mut answer))
        .await
        .unwrap();
    assert_eq!(collect_bodies(&answer), "/1 hi");
}

#[tokio::test]
async fn an_answer_of_unknown_length_comes_in_chunks_and_is_whole() {
    let fixture = TestGateway::start();
    let addr = start_instance(async |_| {
        let pieces = ["one", "", "two"].map(|piece| Ok(Frame::data(Bytes::from(piece))));
        Response::new(StreamBody::new(futures_util::stream::iter(pieces)).boxed_unsync())
    })
    .await;
    fixture.publish_echo(addr);
    let mut stream = TcpStream::connect(fixture.public).await.unwrap();
    for _ in 0..2 {
        stream
            .write_all(b"GET /function/echo HTTP/1.1\r\nhost: a\r\n\r\n")
            .await
            .unwrap();
        let head = nearpath_testkit::within(read_head(&mut stream)).await;
        assert!(
            head.contains("\r\ntransfer-encoding: chunked\r\n") && !head.contains("content-length"),
            "{head}"
        );
        let mut body = String::new();
        while !body.ends_with("0\r\n\r\n") {
            body.push(char::from(
                nearpath_testkit::within(stream.read_u8()).await.unwrap(),
            ));
        }
        let text: String = body.split("\r\n").skip(1).step_by(2).collect();
        assert_eq!(text, "onetwo", "{body}");
    }
}

#[tokio::test]
async fn an_answer_without_a_body_has_no_length() {
    let fixture = TestGateway::start();
    let addr =
        start_instance(async |_| Response::builder().status(204).body(full_body("")).unwrap())
            .await;
    fixture.publish_echo(addr);
    let answer = send_raw(
        fixture.public,
        b"GET /function/echo HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n",
    )
    .await;
    assert!(
        answer.starts_with("HTTP/1.1 204 No Content\r\n") && answer.ends_with("\r\n\r\n"),
        "{answer}"
    );
    assert!(
        !answer.contains("content-length") && !answer.contains("transfer-encoding"),
        "{answer}"
    );
}
