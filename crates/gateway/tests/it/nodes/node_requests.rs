//! Requests of another node that the fast path declines: the pipeline answers them.

use nearpath_testkit::within;
use nearpath_types::FunctionPolicy;
use nearpath_wire::mtls::{AlpnProtocol, CallerStream, TlsVersion};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::certificates::{HOUR, LIMIT, node_tls};
use super::fixture::{TestNode, elsewhere, here, new_authority};
use super::kept_client::KeptClient;
use crate::fixture::start_mirror;

/// Node b with a function, and a connection of a node a that a test plays itself.
struct CalledNode {
    b: TestNode,
    stream: CallerStream<TcpStream>,
}

impl CalledNode {
    async fn start() -> Self {
        let authority = new_authority();
        let b = TestNode::with_kept_tls(&authority, "b");
        let mirror = start_mirror().await;
        b.publish(
            &[],
            vec![here("echo", FunctionPolicy::default(), &[mirror])],
        );
        let caller = node_tls(&authority, "a", HOUR, &[&authority]);
        let connector = caller.caller_config().mtls_connector();
        let (addr, version) = (b.gateway.node_port.unwrap(), TlsVersion::Tls13);
        let dialed = connector.dial_worker(addr, "b", version, AlpnProtocol::Http1, LIMIT);
        let (stream, _) = dialed.await.unwrap();
        Self { b, stream }
    }

    /// Sends a request with these further fields, and returns the response with its end.
    async fn call(mut self, function: &[u8], fields: &str) -> (TestNode, String) {
        let start = b"GET /function/echo HTTP/1.1\r\nhost: b\r\nconnection: close\r\n";
        let parts = [
            &start[..],
            fields.as_bytes(),
            b"x-nearpath-function: ",
            function,
            b"\r\n\r\n",
        ];
        self.stream.write_all(&parts.concat()).await.unwrap();
        let mut response = Vec::new();
        // Closed with or without a close_notify.
        let _ = within(self.stream.read_to_end(&mut response)).await;
        (self.b, String::from_utf8_lossy(&response).into_owned())
    }
}

fn fields(count: usize) -> String {
    (0..count).map(|at| format!("x-f-{at}: 1\r\n")).collect()
}

#[tokio::test]
async fn a_function_name_that_is_no_text_calls_no_function() {
    let node = CalledNode::start().await;
    // The path would name one if it came from a client.
    let (b, response) = node.call(b"echo\xff", "").await;
    assert!(response.starts_with("HTTP/1.1 503 "), "{response}");
    assert!(
        response.contains("x-nearpath-not-run: not_here\r\n"),
        "{response}"
    );
    assert_eq!(b.get("/function/echo").await.status, 200);
}

#[tokio::test]
async fn many_fields_and_long_heads_reach_the_function() {
    let long = format!("x-long: {}\r\n", "x".repeat(20 << 10));
    for (fields, last) in [
        (fields(28), "x-f-27: 1\n"),
        (fields(60), "x-f-59: 1\n"),
        (long, "x-long: xxx"),
    ] {
        let node = CalledNode::start().await;
        let (_b, response) = node.call(b"echo.openfaas-fn", &fields).await;
        assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
        // The path of another node's request is the function's own.
        assert!(
            response.contains("\r\n\r\nGET /function/echo\n"),
            "{response}"
        );
        assert!(response.contains(last), "{response}");
    }
}

#[tokio::test]
async fn a_head_beyond_all_limits_is_refused() {
    let node = CalledNode::start().await;
    let long = format!("x-long: {}\r\n", "x".repeat(1 << 20));
    let (b, response) = node.call(b"echo.openfaas-fn", &long).await;
    // A reset may overtake the response, as the whole head is not read.
    let is_refused = response.is_empty() || response.starts_with("HTTP/1.1 431 ");
    assert!(is_refused, "{response}");
    assert_eq!(b.get("/function/echo").await.status, 200);
}

#[tokio::test]
async fn requests_beyond_the_limits_take_a_stream_to_the_other_node() {
    let authority = new_authority();
    let [a, b] = ["a", "b"].map(|name| TestNode::with_kept_tls(&authority, name));
    let mirror = start_mirror().await;
    let echo = here("echo", FunctionPolicy::default(), &[mirror]);
    b.publish(&[], vec![echo]);
    let remote = elsewhere("echo", FunctionPolicy::default(), &[&b]);
    a.publish(&[&b], vec![remote]);
    let mut client = KeptClient::connect(a.gateway.public).await;
    let long = format!("x-long: {}\r\n", "x".repeat(13 << 10));
    for (fields, is_kept) in [(fields(10), true), (fields(24), false), (long, false)] {
        client.get_until_kept("/function/echo").await;
        client.send("/function/echo", &fields).await;
        let response = client.receive().await;
        assert_eq!(
            (response.status(), response.is_kept()),
            (200, is_kept),
            "{response:?}"
        );
        let last = fields.lines().last().unwrap();
        assert!(response.body.contains(last), "{response:?}");
    }
}
