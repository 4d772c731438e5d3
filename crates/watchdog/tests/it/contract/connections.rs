//! Calls to a tenant's server with few streams per connection, or a short backlog.

use std::collections::HashSet;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures_util::future::join_all;
use http::{Request, Response, Version};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use nearpath_testkit::{eventually, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::Semaphore;

use crate::contract::support::{WatchdogProcess, full, send, start_hello_tenant, text};

/// An h2c server that holds every call until it is let go.
struct HeldH2cServer {
    addr: SocketAddr,
    gate: Arc<Semaphore>,
    inside: Arc<AtomicUsize>,
    connections: Arc<AtomicUsize>,
}

impl HeldH2cServer {
    /// Starts a server that allows so many streams on a connection.
    async fn with_stream_limit(streams: u32) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let held = Self {
            addr: listener.local_addr().unwrap(),
            gate: Arc::new(Semaphore::new(0)),
            inside: Arc::default(),
            connections: Arc::default(),
        };
        let (gate, inside, connections) = (
            held.gate.clone(),
            held.inside.clone(),
            held.connections.clone(),
        );
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (gate, inside, connections) =
                    (gate.clone(), inside.clone(), connections.clone());
                tokio::spawn(async move {
                    let first = AtomicUsize::new(1); // the probe connects and sends nothing
                    let service = service_fn(|_: Request<Incoming>| {
                        connections.fetch_add(first.swap(0, Ordering::SeqCst), Ordering::SeqCst);
                        inside.fetch_add(1, Ordering::SeqCst);
                        let gate = gate.clone();
                        async move {
                            gate.acquire().await.unwrap().forget();
                            Ok::<_, Infallible>(Response::new(full("done")))
                        }
                    });
                    let mut server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                    let _ = server
                        .max_concurrent_streams(streams)
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        held
    }

    fn inside(&self) -> usize {
        self.inside.load(Ordering::SeqCst)
    }
}

type CallHandles = Vec<tokio::task::JoinHandle<Response<Incoming>>>;

fn start_calls(addr: SocketAddr, version: Version, count: usize) -> CallHandles {
    let ask = || {
        Request::post("/s/m")
            .version(version)
            .header("content-type", "application/grpc")
    };
    let one = |_| {
        let request: Request<Full<Bytes>> = ask().body(full("")).unwrap();
        tokio::spawn(async move { send(addr, request).await.unwrap() })
    };
    (0..count).map(one).collect()
}

async fn assert_all_succeed(calls: CallHandles) {
    for response in within(join_all(calls)).await {
        assert_eq!(text(response.unwrap()).await, (200, "done".to_owned()));
    }
}

#[tokio::test]
async fn calls_beyond_what_one_h2c_connection_allows_go_over_others() {
    let held = HeldH2cServer::with_stream_limit(10).await;
    let watchdog = WatchdogProcess::in_http_mode(held.addr, &[]);
    let calls = start_calls(watchdog.addr, Version::HTTP_2, 150);
    eventually("150 calls are inside at a time", async || {
        held.inside() == 150
    })
    .await;
    assert_eq!(
        held.connections.load(Ordering::SeqCst),
        15,
        "no more connections than it takes"
    );
    held.gate.add_permits(150);
    assert_all_succeed(calls).await;
    let calls = start_calls(watchdog.addr, Version::HTTP_2, 150);
    held.gate.add_permits(150);
    assert_all_succeed(calls).await;
    assert_eq!(
        held.connections.load(Ordering::SeqCst),
        15,
        "places are free again"
    );
}

#[tokio::test]
async fn calls_beyond_what_a_server_allows_at_all_are_refused() {
    let held = HeldH2cServer::with_stream_limit(2).await;
    let watchdog = WatchdogProcess::in_http_mode(held.addr, &[]);
    let calls = start_calls(watchdog.addr, Version::HTTP_2, 64);
    eventually("64 calls are inside at a time", async || {
        held.inside() == 64
    })
    .await;
    let refused = start_calls(watchdog.addr, Version::HTTP_2, 1)
        .pop()
        .unwrap()
        .await
        .unwrap();
    assert_eq!(refused.headers()["x-nearpath-reason"], "overload");
    assert_eq!(refused.headers()["grpc-status"], "8");
    let message = refused.headers()["grpc-message"].to_str().unwrap();
    assert!(
        message.ends_with(" (max_inflight)") && message.contains("SETTINGS_MAX_CONCURRENT_STREAMS"),
        "{message}"
    );
    held.gate.add_permits(65);
    assert_all_succeed(calls).await;
    assert_all_succeed(start_calls(watchdog.addr, Version::HTTP_2, 1)).await;
}

/// A caller who leaves while the connection is being opened must not leave it closed to others.
#[tokio::test]
async fn a_caller_who_leaves_gives_its_place_back() {
    let held = HeldH2cServer::with_stream_limit(1).await;
    let watchdog = WatchdogProcess::in_http_mode(held.addr, &[]);
    for round in 1..=40 {
        let calls = start_calls(watchdog.addr, Version::HTTP_2, 1);
        eventually("inside", async || held.inside() == round).await;
        calls.iter().for_each(tokio::task::JoinHandle::abort);
    }
    held.gate.add_permits(41); // some of those who left may not know it yet
    assert_all_succeed(start_calls(watchdog.addr, Version::HTTP_2, 1)).await;
}

/// Local ports of sockets that wait for `server` to take their connection (state 02 is SYN_SENT,
/// proc_net_tcp of the kernel).
fn connecting_ports(server: SocketAddr) -> HashSet<String> {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let remote = format!("0100007F:{:04X}", server.port());
    let fields = table
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    fields
        .filter(|field| field[2] == remote && field[3] == "02")
        .map(|field| field[1].to_owned())
        .collect()
}

/// The kernel drops connections beyond a full backlog and retries after a second, so none should
/// wait there.
#[tokio::test]
async fn few_connections_are_opened_at_a_time_and_none_waits_for_a_retry_of_the_kernel() {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let (addr, listener) = (socket.local_addr().unwrap(), socket.listen(1).unwrap());
    let watchdog = WatchdogProcess::in_http_mode(addr, &[("max_inflight", "30")]);
    within(listener.accept()).await.unwrap();
    let calls = start_calls(watchdog.addr, Version::HTTP_11, 30);
    eventually("all calls are in progress", async || {
        watchdog.get("/_/ready").await.0 == 429
    })
    .await;
    let mut seen = HashSet::new();
    eventually("others knock", async || {
        let now = connecting_ports(addr);
        assert!(now.len() <= 4, "{} knock at the same time", now.len());
        seen.extend(now);
        seen.len() > 8
    })
    .await;
    tokio::spawn(serve_done(listener));
    assert_all_succeed(calls).await;
}

async fn serve_done(listener: TcpListener) {
    while let Ok((mut stream, _)) = listener.accept().await {
        tokio::spawn(async move {
            while let Ok(1..) = stream.read(&mut [0; 2048]).await {
                let _ = stream
                    .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone")
                    .await;
            }
        });
    }
}

#[tokio::test]
async fn a_connection_that_is_meant_for_the_gateway_gets_no_answer() {
    let port = nearpath_testkit::free_addr().port().to_string();
    let listener = format!("127.0.0.2:{port}");
    let variables = [
        ("port", &*port),
        ("bind_address", "0.0.0.0"),
        ("NEARPATH_GATEWAY_LISTENER", &*listener),
    ];
    let _watchdog = WatchdogProcess::in_http_mode(start_hello_tenant().await, &variables);
    for (to, answer) in [
        (format!("127.0.0.1:{port}"), "HTTP/1.1 200"),
        (listener.clone(), ""),
    ] {
        let mut stream = tokio::net::TcpStream::connect(&to).await.unwrap();
        let head = b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
        let _ = stream.write_all(head).await; // the other end may have closed
        let mut bytes = Vec::new();
        let _ = within(stream.read_to_end(&mut bytes)).await;
        let bytes = String::from_utf8(bytes).unwrap();
        assert!(
            bytes.starts_with(answer) && bytes.is_empty() == answer.is_empty(),
            "{to}: {bytes}"
        );
    }
}
