//! Connections of other nodes that the node's service takes over after an upgrade.

use std::io;

use nearpath_testkit::within;
use nearpath_wire::mtls::{AlpnProtocol, CallerStream, TlsVersion};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::certificates::{HOUR, LIMIT, node_tls};
use super::fixture::{TestNode, new_authority};
use crate::fixture::UPGRADE_PATH;

/// Node b, and an upgraded connection of a node a, which b answers with what it gets.
async fn upgrade() -> (TestNode, CallerStream<TcpStream>) {
    let authority = new_authority();
    let b = TestNode::start(&authority, "b");
    let caller = node_tls(&authority, "a", HOUR, &[&authority]);
    let connector = caller.caller_config().mtls_connector();
    let (addr, version) = (b.gateway.node_port.unwrap(), TlsVersion::Tls13);
    let dialed = connector.dial_worker(addr, "b", version, AlpnProtocol::Http1, LIMIT);
    let (mut stream, _) = dialed.await.unwrap();
    let request = format!(
        "GET {UPGRADE_PATH} HTTP/1.1\r\nhost: b\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(within(stream.read_u8()).await.unwrap());
    }
    assert!(head.starts_with(b"HTTP/1.1 101"));
    (b, stream)
}

#[tokio::test]
async fn bytes_after_an_upgrade_pass_as_they_are() {
    let (_b, mut stream) = upgrade().await;
    // Like a response of hyper to a request that it cannot read.
    let bytes = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n";
    stream.write_all(bytes).await.unwrap();
    let mut echo = vec![0; bytes.len()];
    within(stream.read_exact(&mut echo)).await.unwrap();
    assert_eq!(echo, bytes);
    stream.write_all(b"the rest").await.unwrap();
    stream.shutdown().await.unwrap();
    let mut rest = String::new();
    within(stream.read_to_string(&mut rest)).await.unwrap();
    assert_eq!(rest, "the rest", "its end came after it");
}

#[tokio::test]
async fn a_drain_does_not_wait_for_an_upgraded_connection() {
    let (mut b, mut stream) = upgrade().await;
    within(b.gateway.drain_gateway()).await;
    let ended = within(stream.read_u8()).await.unwrap_err();
    assert!(
        matches!(
            ended.kind(),
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset
        ),
        "{ended}"
    );
}
