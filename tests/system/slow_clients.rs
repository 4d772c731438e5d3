//! Slow clients beside good ones: a function with few places answers the good ones all the same.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::Request;
use http_body_util::{Empty, StreamBody};
use hyper::body::{Frame, Incoming};
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
    chunked_bodies: usize,
    /// Bodies and responses that are too long to be read ahead.
    long_bodies: usize,
    long_readers: usize,
    readers: usize,
    /// HTTP/2 connections with gRPC calls that send nothing or a part of a message, and the streams
    /// of each.
    grpc: (usize, usize),
    /// HTTP/2 connections whose window is closed, and the streams of each.
    windows: (usize, usize),
}

impl SlowClients {
    /// Starts all; they last as long as the set.
    fn start(&self, addr: SocketAddr) -> JoinSet<()> {
        let mut all = JoinSet::new();
        for _ in 0..self.bodies {
            all.spawn(send_slowly(addr, "content-length: 1000", b"", b"x"));
        }
        for _ in 0..self.chunked_bodies {
            let framing = "transfer-encoding: chunked";
            all.spawn(send_slowly(addr, framing, b"1\r\nx\r\n", b"1\r\nx\r\n"));
        }
        for _ in 0..self.long_bodies {
            let framing = "content-length: 100000000";
            all.spawn(send_slowly(addr, framing, &[b'x'; 70_000], &[b'x'; 300]));
        }
        for _ in 0..self.readers {
            all.spawn(read_slowly(addr, "large", 1));
        }
        for _ in 0..self.long_readers {
            all.spawn(read_slowly(addr, "long", 300));
        }
        for number in 0..self.grpc.0 {
            all.spawn(call_slowly(addr, self.grpc.1, number % 2 == 0));
        }
        for _ in 0..self.windows.0 {
            all.spawn(close_window(addr, self.windows.1));
        }
        all
    }

    /// Sends once the requests of the slow readers and of the closed windows, from clients that read
    /// as fast as they can. A control: the function's own time for these responses costs the good
    /// clients something too.
    fn start_prompt(&self, addr: SocketAddr) -> JoinSet<()> {
        let mut all = JoinSet::new();
        for _ in 0..self.readers + self.windows.0 * self.windows.1 {
            all.spawn(read_promptly(addr));
        }
        all
    }
}

/// Asks for a response and reads it.
async fn read_promptly(addr: SocketAddr) {
    if let Ok(mut socket) = connect_slow_client(addr, None).await {
        let head = b"GET /function/few?large HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
        let _ = socket.write_all(head).await;
        let _ = tokio::io::copy(&mut socket, &mut tokio::io::sink()).await;
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

/// Announces a body, sends `first`, and then a piece of it per second; begins again when it is cut.
async fn send_slowly(
    addr: SocketAddr,
    framing: &'static str,
    first: &'static [u8],
    piece: &'static [u8],
) {
    loop {
        if let Ok(mut socket) = connect_slow_client(addr, None).await {
            let head = format!("POST /function/few HTTP/1.1\r\nhost: a\r\n{framing}\r\n\r\n");
            let _ = socket.write_all(head.as_bytes()).await;
            let _ = socket.write_all(first).await;
            while socket.write_all(piece).await.is_ok() {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Asks for a response and reads some bytes of it per second; begins again when it is cut.
async fn read_slowly(addr: SocketAddr, size: &'static str, bytes: usize) {
    let mut piece = vec![0; bytes];
    loop {
        if let Ok(mut socket) = connect_slow_client(addr, Some(4096)).await {
            let head = format!("GET /function/few?{size} HTTP/1.1\r\nhost: a\r\n\r\n");
            let _ = socket.write_all(head.as_bytes()).await;
            while socket.read_exact(&mut piece).await.is_ok() {
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

/// Begins gRPC calls that send nothing, or a part of a message; begins again when they are cut.
async fn call_slowly(addr: SocketAddr, streams: usize, begins_message: bool) {
    loop {
        if let Ok(socket) = connect_slow_client(addr, None).await {
            let builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
            if let Ok((sender, connection)) = builder.handshake(TokioIo::new(socket)).await {
                let (mut calls, driver) = (JoinSet::new(), tokio::spawn(connection));
                for _ in 0..streams {
                    let mut sender = sender.clone();
                    let begun = begins_message.then(|| Frame::data(Bytes::from_static(b"\0\0")));
                    let pieces = stream::iter(begun.map(Ok::<_, io::Error>));
                    let request = Request::post("http://a/function/few")
                        .header("content-type", "application/grpc")
                        .body(StreamBody::new(pieces.chain(stream::pending())))
                        .unwrap();
                    calls.spawn(async move { sender.send_request(request).await });
                }
                let _cut: Vec<Result<http::Response<Incoming>, _>> = calls.join_all().await;
                drop(sender);
                driver.abort();
            }
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Shares of the latencies that are printed. A few that wait long are told apart from many that
/// wait a little.
const SHARES: [f64; 6] = [0.5, 0.9, 0.95, 0.98, 0.99, 1.0];

/// Prints the latencies of a load by share; returns its p99.
fn print_latencies(what: &str, latencies: &[Duration]) -> Duration {
    let mut sorted = latencies.to_vec();
    sorted.sort();
    let at = |share| sorted[((sorted.len() - 1) as f64 * share) as usize];
    println!("{what}, by share {SHARES:?}: {:?}", SHARES.map(at));
    at(0.99)
}

async fn assert_good_requests_succeed(slow: SlowClients, length: Duration) {
    let server = TestServer::start().await;
    let code = "long = 8_000_000 if 'long' in self.path else 10
self.answer(200, b'x' * (500_000 if 'large' in self.path else long))";
    let mut spec = http_function(&server.data_dir, "few", code);
    spec["annotations"] = json!({ "nearpath.io/max-inflight": "16" });
    server.deploy_ready(&spec).await;
    let alone = open_loop(server.addr, "/function/few", RATE, length).await;
    assert!(alone.failures.is_empty(), "{:?}", alone.failures);
    let prompt = slow.start_prompt(server.addr);
    let control = open_loop(server.addr, "/function/few", RATE, length).await;
    drop(prompt);
    let slow = slow.start(server.addr);
    let beside = open_loop(server.addr, "/function/few", RATE, length).await;
    drop(slow);
    let p99_alone = print_latencies("alone", &alone.latencies);
    print_latencies("beside prompt clients", &control.latencies);
    let p99_beside = print_latencies("beside slow clients", &beside.latencies);
    let later = &beside.latencies[beside.latencies.len() / 4..];
    let p99_later = print_latencies("beside slow clients, after a quarter of the time", later);
    println!(
        "p99 beside slow clients / alone {:.1}, after a quarter of the time {:.1}; {} answered, {} failed",
        p99_beside.as_secs_f64() / p99_alone.as_secs_f64(),
        p99_later.as_secs_f64() / p99_alone.as_secs_f64(),
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
        chunked_bodies: 20,
        long_bodies: 20,
        long_readers: 20,
        readers: 40,
        grpc: (4, 10),
        windows: (4, 10),
    };
    assert_good_requests_succeed(slow, Duration::from_secs(4)).await;
}

#[tokio::test]
#[ignore = "thousands of slow clients for a minute: make test-slow-clients"]
async fn slow_clients_of_short_transfers_keep_no_good_request_out() {
    need_root!();
    let slow = SlowClients {
        bodies: 600,
        chunked_bodies: 0,
        long_bodies: 0,
        long_readers: 0,
        readers: 600,
        grpc: (0, 0),
        windows: (20, 50),
    };
    assert_good_requests_succeed(slow, Duration::from_secs(30)).await;
}

#[tokio::test]
#[ignore = "thousands of slow clients for a minute: make test-slow-clients"]
async fn slow_clients_keep_no_good_request_out() {
    need_root!();
    let slow = SlowClients {
        bodies: 600,
        chunked_bodies: 200,
        long_bodies: 100,
        long_readers: 100,
        readers: 600,
        grpc: (20, 20),
        windows: (20, 50),
    };
    assert_good_requests_succeed(slow, Duration::from_secs(30)).await;
}
