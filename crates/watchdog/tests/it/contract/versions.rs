//! Tenants and callers that speak HTTP/1.0.

use std::net::SocketAddr;

use http::{Request, Version};
use nearpath_testkit::within;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::contract::support::{WatchdogProcess, full, send, start_hello_tenant, text};

/// A tenant's server that answers in HTTP/1.0: the end of the connection is the end of the body.
async fn old_tenant() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                if let Ok(1..) = stream.read(&mut [0; 2048]).await {
                    let _ = stream
                        .write_all(b"HTTP/1.0 200 OK\r\nServer: old\r\n\r\nhello")
                        .await;
                }
            });
        }
    });
    addr
}

/// The head of the next answer, and the body when it is chunked in one piece.
async fn next_answer(stream: &mut BufReader<TcpStream>) -> (Vec<String>, String) {
    let mut lines = Vec::new();
    let mut body = String::new();
    while !body.ends_with("0\r\n\r\n") {
        let mut line = String::new();
        assert_ne!(
            within(stream.read_line(&mut line)).await.unwrap(),
            0,
            "closed after {lines:?} {body:?}"
        );
        match lines.last().is_some_and(String::is_empty) {
            true => body += &line,
            false => lines.push(line.trim_end().to_owned()),
        }
    }
    (lines, body)
}

#[tokio::test]
async fn an_answer_in_http_1_0_becomes_one_in_the_callers_version() {
    let watchdog = WatchdogProcess::in_http_mode(old_tenant().await, &[]);
    let mut stream = BufReader::new(TcpStream::connect(watchdog.addr).await.unwrap());
    for _ in 0..2 {
        stream
            .write_all(b"GET / HTTP/1.1\r\nHost: f\r\n\r\n")
            .await
            .unwrap();
        let (head, body) = next_answer(&mut stream).await;
        assert_eq!(head[0], "HTTP/1.1 200 OK");
        assert!(head.contains(&"server: old".to_owned()), "{head:?}");
        assert_eq!(body, "5\r\nhello\r\n0\r\n\r\n");
    }
    let request = Request::get("/")
        .version(Version::HTTP_2)
        .body(full(""))
        .unwrap();
    assert_eq!(
        text(send(watchdog.addr, request).await.unwrap()).await,
        (200, "hello".to_owned())
    );
}

#[tokio::test]
async fn a_caller_who_speaks_http_1_0_is_answered_in_it() {
    for tenant in [old_tenant().await, start_hello_tenant().await] {
        let watchdog = WatchdogProcess::in_http_mode(tenant, &[]);
        let mut stream = TcpStream::connect(watchdog.addr).await.unwrap();
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        within(stream.read_to_string(&mut answer)).await.unwrap();
        assert!(
            answer.starts_with("HTTP/1.0 200 OK\r\n") && answer.ends_with("\r\n\r\nhello"),
            "{answer}"
        );
    }
}
