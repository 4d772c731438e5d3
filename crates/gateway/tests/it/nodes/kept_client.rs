//! Client with one connection: one thread of the gateway, and its kept connections, serve all its requests.

use std::net::SocketAddr;

use nearpath_testkit::within;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::fixture::read_head;

/// Beginning of the path report of a call over a kept connection.
const KEPT: &str = "tls; obstacle=kept_tls;";

/// Client that sends its requests one after the other.
pub(super) struct KeptClient(TcpStream);

/// Response with its head as text.
#[derive(Debug)]
pub(super) struct TextResponse {
    pub(super) head: String,
    pub(super) body: String,
}

impl TextResponse {
    /// Returns the value of a field; empty: it is absent.
    pub(super) fn field(&self, name: &str) -> &str {
        let mut lines = self.head.lines();
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        value.unwrap_or_default()
    }

    pub(super) fn status(&self) -> u16 {
        self.head.split(' ').nth(1).unwrap().parse().unwrap()
    }

    /// Returns whether a kept connection carried the call.
    pub(super) fn is_kept(&self) -> bool {
        self.field("x-nearpath-path").starts_with(KEPT)
    }
}

impl KeptClient {
    pub(super) async fn connect(gateway: SocketAddr) -> Self {
        Self(TcpStream::connect(gateway).await.unwrap())
    }

    /// Sends a request, with these further lines of the head.
    pub(super) async fn send(&mut self, path: &str, lines: &str) {
        let start = format!("GET {path} HTTP/1.1\r\nhost: a\r\nx-nearpath-path: 1\r\n");
        let request = [&start, lines, "\r\n"].concat();
        self.0.write_all(request.as_bytes()).await.unwrap();
    }

    /// Reads the response to the last request.
    pub(super) async fn receive(&mut self) -> TextResponse {
        let head = within(read_head(&mut self.0)).await;
        let mut response = TextResponse {
            head,
            body: String::new(),
        };
        let mut body = vec![0; response.field("content-length").parse().unwrap()];
        within(self.0.read_exact(&mut body)).await.unwrap();
        response.body = String::from_utf8(body).unwrap();
        response
    }

    pub(super) async fn get(&mut self, path: &str) -> TextResponse {
        self.send(path, "").await;
        self.receive().await
    }

    /// Repeats a request until a kept connection carries it.
    pub(super) async fn get_until_kept(&mut self, path: &str) -> TextResponse {
        let calling = async {
            loop {
                let response = self.get(path).await;
                if response.is_kept() {
                    return response;
                }
                tokio::task::yield_now().await;
            }
        };
        within(calling).await
    }
}
