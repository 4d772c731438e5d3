//! Clients that open connections without end leave room for others, and for the administrator.

use std::net::Ipv4Addr;

use nearpath_gateway::GatewaySettings;
use nearpath_testkit::within;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::fixture::{TestGateway, start_mirror};

/// Connections of all threads together.
const MAX_CONNECTIONS: usize = 16;

fn start_gateway() -> TestGateway {
    TestGateway::with_settings(GatewaySettings {
        max_connections: MAX_CONNECTIONS,
        ..GatewaySettings::default()
    })
}

/// Connects from 127.0.0.`host`, asks for `path`, and returns the open connection with the first
/// bytes of the answer; `None` when the gateway closes without one.
async fn ask_from(fixture: &TestGateway, host: u8, path: &str) -> Option<(TcpStream, String)> {
    let socket = TcpSocket::new_v4().unwrap();
    socket
        .bind((Ipv4Addr::new(127, 0, 0, host), 0).into())
        .unwrap();
    let mut stream = socket.connect(fixture.public).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n");
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = [0; 2_048];
    match within(stream.read(&mut answer)).await {
        Ok(count) if count > 0 => {
            let text = String::from_utf8_lossy(&answer[..count]).into_owned();
            Some((stream, text))
        }
        _ => None,
    }
}

/// Refused connections after which every thread has met a source: the kernel chooses the thread.
const MANY_REFUSALS: usize = 64;

/// Opens connections until every thread refuses them.
async fn open_until_refused(fixture: &TestGateway, host: u8) -> Vec<TcpStream> {
    let (mut open, mut refused) = (Vec::new(), 0);
    while refused < MANY_REFUSALS {
        match ask_from(fixture, host, "/healthz").await {
            Some((stream, _)) => open.push(stream),
            None => refused += 1,
        }
    }
    open
}

#[tokio::test]
async fn one_source_leaves_connections_to_others() {
    let fixture = start_gateway();
    fixture.publish_echo(start_mirror().await);
    let held = open_until_refused(&fixture, 2).await;
    assert_eq!(held.len(), MAX_CONNECTIONS / 2);
    let (_open, answer) = ask_from(&fixture, 3, "/function/echo").await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let metrics = fixture.encode_metrics();
    let refused = format!("nearpath_connections_refused_total {MANY_REFUSALS}");
    assert!(metrics.contains(&refused), "{metrics}");
}

#[tokio::test]
async fn health_answers_when_several_sources_hold_all_connections() {
    let fixture = start_gateway();
    fixture.publish_echo(start_mirror().await);
    let mut held = Vec::new();
    for host in 2..=4 {
        held.extend(open_until_refused(&fixture, host).await);
    }
    let (_open, answer) = ask_from(&fixture, 9, "/healthz").await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let (_open, answer) = ask_from(&fixture, 9, "/function/echo").await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert!(
        answer.contains("connection_limit") && answer.contains("connection: close"),
        "{answer}"
    );
}
