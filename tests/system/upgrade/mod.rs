//! Handover between processes: the old one completes its requests, new ones go to the new one.

mod client;
mod egress_handover;

use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::{Method, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::handshake;
use hyper_util::rt::TokioIo;
use nearpath_kernel::reuseport;
use nearpath_testkit::{eventually, need_root, within};
use rustix::net::sockopt::set_socket_reuseport;
use rustix::net::{AddressFamily, SocketType, bind, socket};
use rustix::process::Signal;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::http3;
use crate::load::open_loop;
use crate::test_server::{TestServer, echo_function, http_function, script_function};
use client::{HalfSentRequest, RequestFailure, UpgradeClient};

/// Connections that exist at the handover: each of the two threads has some.
const CONNECTIONS: usize = 8;

/// A server with HTTP/3 and an echo function.
struct UpgradeFixture {
    server: TestServer,
    address: SocketAddr,
    authority: PathBuf,
    _folder: tempfile::TempDir,
}

impl UpgradeFixture {
    async fn new(options: &[&str]) -> Self {
        let folder = tempfile::Builder::new()
            .prefix("nearpath-test-")
            .tempdir()
            .unwrap();
        let options = [&["--threads", "2"], options].concat();
        let (server, at, authority) = http3::start_http3_server(folder.path(), &options).await;
        server
            .deploy_ready(&echo_function(&server.data_dir, "echo"))
            .await;
        Self {
            server,
            address: at,
            authority,
            _folder: folder,
        }
    }

    async fn connect(&self) -> UpgradeClient {
        UpgradeClient::connect(self.address, &self.authority)
            .await
            .unwrap()
    }

    /// Opens connections with a half-sent request on each.
    async fn begin_requests(&self) -> Vec<(UpgradeClient, HalfSentRequest)> {
        let mut connections = Vec::new();
        for _ in 0..CONNECTIONS {
            let mut line = self.connect().await;
            let mut open = line.begin_request("echo").await.unwrap();
            open.echo_piece("first").await.unwrap();
            connections.push((line, open));
        }
        connections
    }
}

async fn connection_count(server: &TestServer) -> u64 {
    server
        .metric_total("nearpath_http3_connections_total")
        .await
}

/// Waits for GOAWAY: no new request may start on the connection.
async fn has_goaway(line: &mut UpgradeClient) {
    eventually("it is told to leave", async || {
        match line.begin_request("echo").await {
            Err(error) => error.to_string().contains("closing"),
            Ok(open) => {
                let _ = open.finish_request().await; // it was underway at the GOAWAY
                false
            }
        }
    })
    .await;
}

#[tokio::test]
async fn requests_over_http3_outlive_the_process_that_took_them() {
    need_root!();
    let mut fixture = UpgradeFixture::new(&[]).await;
    let mut lines = fixture.begin_requests().await;
    let successor = fixture.server.hand_over().await;
    for (line, open) in &mut lines {
        has_goaway(line).await;
        open.echo_piece("second").await.unwrap();
        line.rebind_socket();
        open.echo_piece("third").await.unwrap();
    }
    assert_eq!(
        connection_count(&successor).await,
        0,
        "their packets do not come to the new one"
    );
    for _ in 0..CONNECTIONS {
        assert_eq!(
            fixture
                .connect()
                .await
                .send_request("echo", "new")
                .await
                .unwrap(),
            (StatusCode::OK, "new".into())
        );
    }
    assert_eq!(connection_count(&successor).await, CONNECTIONS as u64);
    for (_line, open) in lines {
        assert_eq!(open.finish_request().await.unwrap(), "");
    }
    let status = fixture.server.wait_exit().await;
    assert!(status.success(), "{status}\n{}", fixture.server.log());
    assert_eq!(
        fixture
            .connect()
            .await
            .send_request("echo", "still")
            .await
            .unwrap(),
        (StatusCode::OK, "still".into())
    );
    successor
        .deploy_ready(&echo_function(&successor.data_dir, "later"))
        .await;
}

/// Routes every packet to the socket with a number.
fn route_all_to(number: u32, at: SocketAddr) -> UdpSocket {
    let socket = socket(AddressFamily::INET, SocketType::DGRAM, None).unwrap();
    set_socket_reuseport(&socket, true).unwrap();
    bind(&socket, &at).unwrap();
    reuseport::attach_steering_program(&socket, &[(0x06, 0, 0, number)]).unwrap();
    socket.into()
}

#[tokio::test]
async fn control_without_steering_they_do_not() {
    need_root!();
    let fixture = UpgradeFixture::new(&[]).await;
    let mut lines = fixture.begin_requests().await;
    let _successor = fixture.server.hand_over().await;
    // the first socket of the new process: the old one has 0 and 1
    let _same_port = route_all_to(2, fixture.address);
    for (_, open) in &mut lines {
        let error = open.echo_piece("second").await.unwrap_err();
        assert!(
            error.to_string().to_lowercase().contains("reset"),
            "{error}"
        );
    }
}

#[tokio::test]
async fn three_processes_serve_at_a_time() {
    need_root!();
    let mut fixture = UpgradeFixture::new(&[]).await;
    let mut first = fixture.begin_requests().await;
    let mut successor = fixture.server.hand_over().await;
    let mut second = fixture.begin_requests().await;
    let last = successor.hand_over().await;
    let third = fixture.begin_requests().await;
    for (_, open) in first.iter_mut().chain(&mut second) {
        open.echo_piece("second").await.unwrap();
    }
    for (_line, open) in second.into_iter().chain(first) {
        assert_eq!(open.finish_request().await.unwrap(), "");
    }
    successor.wait_exit().await;
    fixture.server.wait_exit().await;
    for (_line, open) in third {
        assert_eq!(open.finish_request().await.unwrap(), "");
    }
    // The next process reuses the first one's part, whose sockets the last one has kept open.
    let mut again = fixture.begin_requests().await;
    let mut last = last;
    let next = last.hand_over().await;
    for (_, open) in &mut again {
        open.echo_piece("second").await.unwrap();
    }
    for _ in 0..CONNECTIONS {
        assert_eq!(
            fixture
                .connect()
                .await
                .send_request("echo", "new")
                .await
                .unwrap(),
            (StatusCode::OK, "new".into())
        );
    }
    assert_eq!(connection_count(&next).await, CONNECTIONS as u64);
    drop(again);
    last.wait_exit().await;
}

#[tokio::test]
async fn the_new_process_may_have_more_threads_or_fewer() {
    need_root!();
    let fixture = UpgradeFixture::new(&[]).await;
    let mut servers: Vec<TestServer> = Vec::new();
    let mut lines = fixture.begin_requests().await;
    for threads in ["3", "1", "2"] {
        let newest = servers.last().unwrap_or(&fixture.server);
        servers.push(newest.hand_over_with(&["--threads", threads]).await);
        lines.extend(fixture.begin_requests().await);
        for _ in 0..CONNECTIONS {
            // Each open socket has a process that accepts on it.
            assert_eq!(
                fixture.server.call_function("echo", "tcp").await.body(),
                "tcp"
            );
        }
    }
    for (_, open) in &mut lines {
        open.echo_piece("second").await.unwrap();
    }
}

#[tokio::test]
async fn a_request_that_takes_too_long_is_cut_at_the_drains_end() {
    need_root!();
    let mut fixture = UpgradeFixture::new(&["--drain-timeout", "500ms"]).await;
    let mut lines = fixture.begin_requests().await;
    let _successor = fixture.server.hand_over().await;
    fixture.server.wait_exit().await;
    for (line, open) in &mut lines {
        assert!(open.read_rest().await.is_err());
        within(line.quic.closed()).await;
    }
    assert_eq!(
        fixture
            .connect()
            .await
            .send_request("echo", "new")
            .await
            .unwrap(),
        (StatusCode::OK, "new".into())
    );
}

/// Folders of a node's cgroups.
fn cgroups(data_dir: &Path, run: &str) -> Vec<PathBuf> {
    let node = std::fs::read_to_string(data_dir.join("node-id")).unwrap();
    let all = std::fs::read_dir("/sys/fs/cgroup")
        .unwrap()
        .map(|one| one.unwrap().path());
    let of_node = all.map(|at| at.join("nearpath").join(format!("{}{run}", node.trim())));
    of_node.filter(|at| at.exists()).collect()
}

#[tokio::test]
async fn a_process_killed_while_it_drains_leaves_nothing_and_its_clients_notice() {
    need_root!();
    let mut fixture = UpgradeFixture::new(&[]).await;
    let mut lines = fixture.begin_requests().await;
    let old = fixture.server.instance_pids("echo").await;
    let successor = fixture.server.hand_over().await;
    assert!(
        !cgroups(&successor.data_dir, "").is_empty(),
        "else this test shows nothing"
    );
    fixture.server.end_with(Signal::KILL);
    for (line, open) in &mut lines {
        assert!(open.echo_piece("second").await.is_err());
        let closed = within(line.quic.closed()).await;
        // not a timeout: the new process sends the reset
        assert!(matches!(closed, quinn::ConnectionError::Reset), "{closed}");
    }
    eventually("nothing is left", async || {
        cgroups(&successor.data_dir, "").is_empty()
            && old
                .iter()
                .all(|pid| !Path::new(&format!("/proc/{pid}")).exists())
    })
    .await;
    assert!(
        !cgroups(&successor.data_dir, ".1").is_empty(),
        "but what is the new one's"
    );
    assert_eq!(
        fixture
            .connect()
            .await
            .send_request("echo", "new")
            .await
            .unwrap(),
        (StatusCode::OK, "new".into())
    );
}

#[tokio::test]
async fn a_new_process_that_dies_half_way_costs_only_commands() {
    need_root!();
    let fixture = UpgradeFixture::new(&[]).await;
    let idle = script_function(&fixture.server.data_dir, "asleep", "exec cat\n");
    fixture.server.deploy_ready(&idle).await;
    fixture.server.scale("asleep", 0).await;
    fixture.server.wait_available("asleep", 0).await;
    // An instance that never becomes ready, so that the new process waits for it.
    let slow = http_function(&fixture.server.data_dir, "slow", "self.answer(200, b'')");
    fixture.server.deploy_ready(&slow).await;
    let server = fixture.server.data_dir.join("fn-slow/server.py");
    let mut lines = fixture.begin_requests().await;
    let refused = fixture
        .server
        .spawn_successor(&["--watchdog", "/nonexistent"]);
    let mut refused = refused;
    assert!(!refused.wait_exit().await.success());
    fixture
        .server
        .deploy(&echo_function(&fixture.server.data_dir, "order"))
        .await;

    let mut never = slow.clone();
    std::fs::write(server, "import time\ntime.sleep(3600)\n").unwrap();
    never["service"] = json!("never");
    fixture.server.deploy(&never).await;
    let mut successor = fixture.server.spawn_successor(&[]);
    let order = echo_function(&fixture.server.data_dir, "late").to_string();
    eventually("orders are refused", async || {
        let answer = fixture
            .server
            .send_request(Method::POST, "/system/functions", order.clone())
            .await;
        answer.status() == StatusCode::SERVICE_UNAVAILABLE
    })
    .await;
    successor.end_with(Signal::KILL);
    for (_, open) in &mut lines {
        open.echo_piece("second").await.unwrap();
    }
    assert_eq!(
        fixture
            .connect()
            .await
            .send_request("echo", "new")
            .await
            .unwrap(),
        (StatusCode::OK, "new".into())
    );
    assert_eq!(
        fixture
            .server
            .call_function("asleep", "wakes")
            .await
            .status(),
        StatusCode::OK
    );
    for (_line, open) in lines {
        assert_eq!(open.finish_request().await.unwrap(), "");
    }
}

#[tokio::test]
async fn a_process_can_start_without_a_predecessor() {
    need_root!();
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start_in(folder.path(), &["--take-over"]).await;
    server
        .deploy_ready(&echo_function(&server.data_dir, "echo"))
        .await;
    assert_eq!(server.call_function("echo", "alone").await.body(), "alone");
}

#[tokio::test]
async fn no_request_is_lost() {
    need_root!();
    let fixture = UpgradeFixture::new(&[]).await;
    let mut others = Vec::new();
    let far = http3::distance::delayed_address(fixture.address).await;
    let over_tcp = open_loop(
        fixture.server.addr,
        "/function/echo",
        50,
        Duration::from_secs(6),
    );
    let over_http3 = async {
        let near = futures_util::future::join_all(
            (0..2).map(|_| request_in_a_loop(fixture.address, &fixture.authority)),
        );
        // Handshakes take 40 ms, so some are always under way.
        let far = futures_util::future::join_all(
            (0..8).map(|_| request_in_a_loop(far, &fixture.authority)),
        );
        let (near, far) = tokio::join!(near, far);
        near.into_iter().chain(far).flatten().collect::<Vec<_>>()
    };
    let upgrades = async {
        let mut newest = &fixture.server;
        for _ in 0..3 {
            others.push(newest.hand_over().await);
            newest = others.last().unwrap();
        }
    };
    let all = async { tokio::join!(over_tcp, over_http3, upgrades) };
    let (outcome, failures, ()) = within(all).await;
    assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
    assert!(failures.is_empty(), "{failures:?}");
}

/// Clients open connections ahead of their requests. The old process keeps those until their first
/// request, which it answers.
#[tokio::test]
async fn a_connection_without_a_request_outlives_the_takeover() {
    need_root!();
    let mut fixture = UpgradeFixture::new(&[]).await;
    let stream = TcpStream::connect(fixture.server.addr).await.unwrap();
    let successor = fixture.server.hand_over().await;
    // Longer than a stopping process waits for a first request.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let (mut sender, connection) = handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let request = http::Request::post("/function/echo").header("host", "a");
    let request = request.body(Full::new(bytes::Bytes::from("late"))).unwrap();
    let response = within(sender.send_request(request))
        .await
        .unwrap_or_else(|error| panic!("{error}\n{}", fixture.server.log()));
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(response.headers()["connection"], "close");
    let body = response.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(body, "late");
    assert!(fixture.server.wait_exit().await.success());
    drop(successor);
}

/// Connects and sends requests for 6 s; returns the failures.
async fn request_in_a_loop(at: SocketAddr, authority: &Path) -> Vec<String> {
    let until = tokio::time::Instant::now() + Duration::from_secs(6);
    let mut failures = Vec::new();
    while tokio::time::Instant::now() < until {
        failures.extend(
            request_once(at, authority)
                .await
                .err()
                .map(|error| error.to_string()),
        );
    }
    failures
}

/// Sends a request like real clients: one that was rejected because the connection ends is repeated
/// on a new connection.
async fn request_once(at: SocketAddr, authority: &Path) -> Result<(), RequestFailure> {
    const NOT_TAKEN: [&str; 3] = ["closing", "H3_REQUEST_REJECTED", "H3_NO_ERROR"];
    loop {
        let mut line = UpgradeClient::connect(at, authority).await?;
        let Err(error) = line.send_request("echo", "x").await else {
            return Ok(());
        };
        let report = error.to_string();
        if report.contains("broke off") || !NOT_TAKEN.iter().any(|word| report.contains(word)) {
            return Err(error);
        }
    }
}

/// Threads of a process with a name.
fn count_threads(pid: u32, name: &str) -> usize {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let names = threads.filter_map(|thread| {
        std::fs::read_to_string(thread.ok()?.path().join("comm")).ok() // it may have ended
    });
    names.filter(|comm| comm.trim() == name).count()
}

/// Listening TCP sockets of a process in the network of the test.
fn count_listeners(pid: u32) -> usize {
    const LISTEN_STATE: &str = "0A"; // proc_net_tcp(5)
    let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    let listening: Vec<_> = table
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|fields| fields.get(3) == Some(&LISTEN_STATE))
        .map(|fields| format!("socket:[{}]", fields[9]))
        .collect();
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let links = files.filter_map(|file| std::fs::read_link(file.ok()?.path()).ok());
    links
        .filter(|link| listening.iter().any(|socket| *link == Path::new(socket)))
        .count()
}

/// However many processes came before, a process stops although an idle client does not answer.
#[tokio::test]
async fn a_process_after_many_takeovers_holds_no_more_and_stops() {
    need_root!();
    let fixture = UpgradeFixture::new(&["--drain-timeout", "600s"]).await;
    let listeners = count_listeners(fixture.server.pid());
    assert!(listeners > 0, "else this test shows nothing");
    let mut newest = fixture.server;
    for _ in 0..6 {
        let successor = newest.hand_over().await;
        assert!(newest.wait_exit().await.success());
        newest = successor;
    }
    eventually("it waits for no old process", async || {
        count_threads(newest.pid(), "old-process") == 0
    })
    .await;
    assert_eq!(count_listeners(newest.pid()), listeners);
    let mut silent = TcpStream::connect(newest.addr).await.unwrap();
    let preface_and_settings = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    silent.write_all(preface_and_settings).await.unwrap();
    within(silent.read_exact(&mut [0; 9])).await.unwrap(); // the gateway speaks HTTP/2
    let pid = rustix::process::Pid::from_raw(newest.pid() as i32).unwrap();
    rustix::process::kill_process(pid, Signal::TERM).unwrap();
    assert!(newest.wait_exit().await.success(), "{}", newest.log());
}
