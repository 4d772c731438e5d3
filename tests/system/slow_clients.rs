//! Slow clients beside good ones: a function with few places answers the good ones all the same.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use nearpath_testkit::need_root;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;

use crate::load::open_loop;
use crate::test_server::{TestServer, http_function};

/// Requests per second of the good clients.
const RATE: u32 = 200;

/// Numbers of slow clients of each kind.
struct SlowClients {
    bodies: usize,
    readers: usize,
    /// HTTP/2 connections whose window is closed, and the streams of each.
    windows: (usize, usize),
}

impl SlowClients {
    /// Starts all; they last as long as the set.
    fn start(&self, addr: SocketAddr) -> JoinSet<()> {
        let mut all = JoinSet::new();
        for _ in 0..self.bodies {
            all.spawn(send_slowly(addr));
        }
        for _ in 0..self.readers {
            all.spawn(read_slowly(addr));
        }
        for _ in 0..self.windows.0 {
            all.spawn(close_window(addr, self.windows.1));
        }
        all
    }
}

/// Connects from an address that no good client uses.
async fn connect_slow_client(
    addr: SocketAddr,
    receive_buffer: Option<u32>,
) -> io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((Ipv4Addr::new(127, 0, 0, 2), 0).into())?;
    if let Some(bytes) = receive_buffer {
        socket.set_recv_buffer_size(bytes)?;
    }
    socket.connect(addr).await
}

/// Announces a body and sends a byte of it per second; begins again when it is cut.
async fn send_slowly(addr: SocketAddr) {
    loop {
        if let Ok(mut socket) = connect_slow_client(addr, None).await {
            let head = "POST /function/few HTTP/1.1\r\nhost: a\r\ncontent-length: 1000\r\n\r\n";
            let _ = socket.write_all(head.as_bytes()).await;
            while socket.write_all(b"x").await.is_ok() {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Asks for a large response and reads a byte of it per second; begins again when it is cut.
async fn read_slowly(addr: SocketAddr) {
    loop {
        if let Ok(mut socket) = connect_slow_client(addr, Some(4096)).await {
            let head = "GET /function/few?large HTTP/1.1\r\nhost: a\r\n\r\n";
            let _ = socket.write_all(head.as_bytes()).await;
            while socket.read_u8().await.is_ok() {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Opens streams whose responses have no room at the client; begins again when they are cut.
async fn close_window(addr: SocketAddr, streams: usize) {
    loop {
        if let Ok(socket) = connect_slow_client(addr, None).await {
            let mut builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
            let handshake = builder
                .initial_stream_window_size(0)
                .handshake::<_, Empty<Bytes>>(TokioIo::new(socket));
            if let Ok((sender, connection)) = handshake.await {
                let (mut calls, driver) = (JoinSet::new(), tokio::spawn(connection));
                for _ in 0..streams {
                    let mut sender = sender.clone();
                    let request = Request::get("http://a/function/few?large")
                        .body(Empty::new())
                        .unwrap();
                    calls.spawn(async move { sender.send_request(request).await });
                }
                let _unread: Vec<Result<http::Response<Incoming>, _>> = calls.join_all().await;
                let _ = driver.await;
            }
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn percentile(latencies: &mut [Duration], share: f64) -> Duration {
    latencies.sort();
    latencies[((latencies.len() - 1) as f64 * share) as usize]
}

async fn assert_good_requests_succeed(slow: SlowClients, length: Duration) {
    let server = TestServer::start().await;
    let code = "self.answer(200, b'x' * (500_000 if 'large' in self.path else 10))";
    let mut spec = http_function(&server.data_dir, "few", code);
    spec["annotations"] = json!({ "nearpath.io/max-inflight": "16" });
    server.deploy_ready(&spec).await;
    let mut alone = open_loop(server.addr, "/function/few", RATE, length).await;
    assert!(alone.failures.is_empty(), "{:?}", alone.failures);
    let slow = slow.start(server.addr);
    let mut beside = open_loop(server.addr, "/function/few", RATE, length).await;
    drop(slow);
    println!(
        "p99 alone {:?}, beside slow clients {:?}; {} answered, {} failed",
        percentile(&mut alone.latencies, 0.99),
        percentile(&mut beside.latencies, 0.99),
        beside.answered,
        beside.failures.len()
    );
    assert!(
        beside.failures.is_empty(),
        "{:?}\n{}",
        beside.failures,
        server.log()
    );
}

#[tokio::test]
async fn some_slow_clients_keep_no_good_request_out() {
    need_root!();
    let slow = SlowClients {
        bodies: 40,
        readers: 40,
        windows: (4, 10),
    };
    assert_good_requests_succeed(slow, Duration::from_secs(4)).await;
}

#[tokio::test]
#[ignore = "thousands of slow clients for a minute: make test-slow-clients"]
async fn slow_clients_keep_no_good_request_out() {
    need_root!();
    let slow = SlowClients {
        bodies: 600,
        readers: 600,
        windows: (20, 50),
    };
    assert_good_requests_succeed(slow, Duration::from_secs(30)).await;
}
