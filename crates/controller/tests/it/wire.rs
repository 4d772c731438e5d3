//! Behaviour that only shows over a real socket.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::SystemTime;

use hyper_util::rt::TokioIo;
use nearpath_testkit::within;
use nearpath_types::LogLine;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use crate::fixture::ControllerFixture;

/// Serves a fixture like a gateway: hyper's body in, the router's reply out.
async fn serve_fixture(fixture: &ControllerFixture) -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let addr = listener.local_addr().unwrap();
    let controller = fixture.controller.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let controller = controller.clone();
            let service = hyper::service::service_fn(move |request| {
                let answer = controller.answer_request(request);
                async move { Ok::<_, Infallible>(answer.await) }
            });
            tokio::spawn(
                hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service),
            );
        }
    });
    addr
}

#[tokio::test]
async fn a_followed_log_line_arrives_while_the_stream_is_open() {
    let fixture = ControllerFixture::new().await;
    fixture.deploy_function("echo").await;
    let (lines, stream) = mpsc::channel(8);
    *fixture.fleet.log_lines.lock().unwrap() = Some(stream);
    let mut client = BufReader::new(
        TcpStream::connect(serve_fixture(&fixture).await)
            .await
            .unwrap(),
    );
    client
        .write_all(b"GET /system/logs?name=echo&follow=true HTTP/1.1\r\nhost: localhost\r\n\r\n")
        .await
        .unwrap();
    for text in ["first", "second"] {
        let line = LogLine {
            name: "echo".into(),
            namespace: "openfaas-fn".into(),
            instance: "i1".into(),
            timestamp: SystemTime::now(),
            text: text.into(),
        };
        within(lines.send(line)).await.unwrap();
        let mut seen = String::new();
        while !seen.contains(text) {
            seen.clear();
            assert_ne!(
                within(client.read_line(&mut seen)).await.unwrap(),
                0,
                "the stream ended"
            );
        }
    }
    drop(client);
    within(lines.closed()).await; // the end of the client is noticed
}

#[tokio::test]
async fn a_truncated_body_changes_nothing() {
    let fixture = ControllerFixture::new().await;
    let mut client = TcpStream::connect(serve_fixture(&fixture).await)
        .await
        .unwrap();
    client
        .write_all(b"POST /system/functions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 500\r\n\r\n{\"service\":")
        .await
        .unwrap();
    client.shutdown().await.unwrap();
    let mut answer = String::new();
    let _ = within(client.read_to_string(&mut answer)).await;
    assert!(!answer.contains(" 202 "), "{answer}");
    assert!(fixture.controller.model().functions.is_empty());
}
