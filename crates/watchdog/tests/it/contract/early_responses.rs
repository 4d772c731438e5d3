//! Responses while the caller still sends its request: no reset overtakes them.

use std::net::SocketAddr;

use nearpath_testkit::{eventually, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::contract::support::{WatchdogProcess, start_hello_tenant};

/// Larger than the buffers of both sockets: the caller can send it only if the watchdog reads.
const BODY_BYTES: usize = 32 * 1024 * 1024;

/// Sends a whole request, and only then reads until the watchdog closes.
async fn send_all_then_read(addr: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(addr).await.unwrap();
    let head = format!("POST {path} HTTP/1.1\r\nhost: a\r\ncontent-length: {BODY_BYTES}\r\n\r\n");
    let sending = async {
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(&vec![b'x'; BODY_BYTES]).await
    };
    within(sending)
        .await
        .expect("the watchdog reads everything");
    let mut response = String::new();
    within(stream.read_to_string(&mut response))
        .await
        .expect("the watchdog closes without a reset");
    response
}

#[tokio::test]
async fn a_caller_that_reads_only_after_its_body_gets_the_response() {
    let variables = [("http_buffer_req_body", "true"), ("max_body", "1024")];
    let tenant = start_hello_tenant().await;
    let watchdog = WatchdogProcess::in_http_mode(tenant, &variables);
    eventually("ready", async || watchdog.get("/_/ready").await.0 == 200).await;
    let response = send_all_then_read(watchdog.addr, "/").await;
    assert!(response.starts_with("HTTP/1.1 413 "), "{response}");
    assert!(response.contains("body_too_large"), "{response}");
    let response = send_all_then_read(watchdog.addr, "/_/health").await;
    assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
    assert!(response.ends_with("\r\n\r\nOK"), "{response}");
}
