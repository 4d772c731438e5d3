//! Egress while one process takes over from another: each has its own proxy, stand-ins and limits.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;

use nearpath_testkit::{eventually, need_root, within};
use serde_json::json;

use crate::egress::{hello_code, run_code, runner_function};
use crate::external_server::{ExternalServer, MACHINE_NAME, MACHINE_V4, TestRedis, on_own_machine};
use crate::shm::run_cli;
use crate::test_server::{TestServer, need_forwarding};

/// A server that responds only on request.
struct SlowServer(TcpListener);

impl SlowServer {
    fn new() -> Self {
        Self(TcpListener::bind((MACHINE_V4, 0)).unwrap())
    }

    fn port(&self) -> u16 {
        self.0.local_addr().unwrap().port()
    }

    async fn accept_client(&self) -> TcpStream {
        let listener = self.0.try_clone().unwrap();
        within(tokio::task::spawn_blocking(move || {
            listener.accept().unwrap().0
        }))
        .await
        .unwrap()
    }
}

/// Asserts that an idle connection is closed.
async fn assert_closed(mut client: TcpStream) {
    let ended = tokio::task::spawn_blocking(move || client.read(&mut [0; 9]));
    assert!(
        within(ended).await.unwrap().is_ok_and(|read| read == 0),
        "it is closed in good order"
    );
}

async fn egress_in_both_processes(options: &[&str]) {
    on_own_machine();
    let (outside, slow) = (
        ExternalServer::bind_at(Ipv4Addr::LOCALHOST),
        SlowServer::new(),
    );
    let folder = tempfile::tempdir().unwrap();
    let mut server = TestServer::start_in(folder.path(), options).await;
    let (port, slow_port) = (outside.port, slow.port());
    let egress = format!("{MACHINE_NAME}:{port} max=2, {MACHINE_V4}:{slow_port} warm=0");
    server
        .deploy_ready(&runner_function(folder.path(), "goes", &egress))
        .await;
    assert_eq!(
        run_code(&server, "goes", &hello_code(MACHINE_NAME, port)).await,
        "heard hello",
        "{}",
        server.log()
    );
    let under_way = hello_code(MACHINE_V4, slow_port);
    let successor = {
        let call = run_code(&server, "goes", &under_way);
        let change = async {
            let mut held = slow.accept_client().await;
            let successor = server.hand_over().await;
            for _ in 0..5 {
                assert_eq!(
                    run_code(&successor, "goes", &hello_code(MACHINE_NAME, port)).await,
                    "heard hello",
                    "{}",
                    successor.log()
                );
            }
            held.write_all(b"at last\n").unwrap();
            successor
        };
        let (reply, successor) = within(async { tokio::join!(call, change) }).await;
        assert_eq!(reply, "at last", "{}", server.log());
        successor
    };
    let status = server.wait_exit().await;
    assert!(status.success(), "{status}\n{}", server.log());
    for _ in 0..5 {
        assert_eq!(
            run_code(&successor, "goes", &hello_code(MACHINE_NAME, port)).await,
            "heard hello",
            "{}",
            successor.log()
        );
    }
    successor.scale("goes", 0).await;
    eventually(
        "every connection ends, those of both processes",
        async || {
            let seen = outside.counts();
            seen.ended + seen.broken == seen.opened
        },
    )
    .await;
    assert!(
        outside.counts().max_open <= 4,
        "each process has a ceiling of two: {:?}",
        outside.counts()
    );
}

#[tokio::test]
async fn both_processes_reach_what_is_declared() {
    need_root!();
    egress_in_both_processes(&[]).await;
}

#[tokio::test]
async fn both_processes_reach_what_is_declared_through_forwarders_of_their_own() {
    need_forwarding!();
    egress_in_both_processes(&["--forward", "tc"]).await;
}

/// Python code for the runner: one connection, `INCR n`.
fn count_rows(port: u16) -> String {
    format!(
        "s = socket.create_connection(('{MACHINE_V4}', {port}), 20)\ns.sendall(b'*2\\r\\n$4\\r\\nINCR\\r\\n$1\\r\\nn\\r\\n')\nsaid = s.recv(99).decode().strip()\ns.close()"
    )
}

/// Number of the server's client connections, without the querying one.
fn redis_clients(redis: &TestRedis) -> u32 {
    redis
        .read_info("connected_clients")
        .unwrap()
        .parse::<u32>()
        .unwrap()
        - 1
}

async fn deploy_writer(server: &TestServer, folder: &Path, redis: &TestRedis, slow: u16) {
    let secret = json!({ "name": "door", "value": "sesame" }).to_string();
    assert!(
        server
            .send_request(http::Method::POST, "/system/secrets", secret)
            .await
            .status()
            .is_success()
    );
    let egress = format!(
        "{MACHINE_V4}:{} password=secret:door protocol=redis, {MACHINE_V4}:{slow} warm=0",
        redis.port
    );
    server
        .deploy_ready(&runner_function(folder, "goes", &egress))
        .await;
}

#[tokio::test]
async fn the_old_process_keeps_no_idle_connections() {
    need_root!();
    on_own_machine();
    let folder = tempfile::tempdir().unwrap();
    let Some(redis) = TestRedis::start(folder.path(), "sesame").await else {
        nearpath_testkit::skip!("needs redis-server")
    };
    let (slow, idle) = (SlowServer::new(), SlowServer::new());
    let mut server = TestServer::start_in(folder.path(), &[]).await;
    deploy_writer(&server, folder.path(), &redis, slow.port()).await;
    let warm = runner_function(
        folder.path(),
        "warm",
        &format!("{MACHINE_V4}:{} warm=1", idle.port()),
    );
    server.deploy_ready(&warm).await;
    let kept_warm = idle.accept_client().await;
    assert_eq!(
        run_code(&server, "goes", &count_rows(redis.port)).await,
        ":1",
        "{}",
        server.log()
    );
    eventually("a used connection is kept", async || {
        redis_clients(&redis) >= 1
    })
    .await;
    let under_way = hello_code(MACHINE_V4, slow.port());
    let call = run_code(&server, "goes", &under_way);
    let change = async {
        let mut held = slow.accept_client().await;
        let successor = server.hand_over().await;
        assert_closed(kept_warm).await;
        let own = |server: &TestServer| {
            let all = run_cli(server, &["pool", "ls", "goes"]);
            let open = all
                .as_array()
                .unwrap()
                .iter()
                .map(|one| one["open"].as_u64().unwrap())
                .sum::<u64>();
            open as u32
        };
        eventually(
            "what is left at the database is the new process's",
            async || redis_clients(&redis) == own(&successor),
        )
        .await;
        assert_eq!(
            run_code(&successor, "goes", &count_rows(redis.port)).await,
            ":2",
            "{}",
            successor.log()
        );
        held.write_all(b"at last\n").unwrap();
        successor
    };
    let (reply, _successor) = within(async { tokio::join!(call, change) }).await;
    assert_eq!(reply, "at last", "{}", server.log());
    assert!(server.wait_exit().await.success());
}

/// Python code that writes `bytes` without waiting for responses, and closes.
fn write_values(port: u16, bytes: usize) -> String {
    format!(
        "s = socket.create_connection(('{MACHINE_V4}', {port}), 20)\ns.sendall(b'x' * {bytes})\ns.close()\nsaid = 'written'"
    )
}

/// Accepted writes (`writes=async`) that were not delivered before the handover are delivered by
/// the old process, which waits for that.
#[tokio::test]
async fn accepted_writes_are_delivered_by_the_process_that_accepted_them() {
    const BYTES: usize = 800_000;
    need_root!();
    on_own_machine();
    let folder = tempfile::tempdir().unwrap();
    let Some(redis) = TestRedis::start(folder.path(), "pw").await else {
        nearpath_testkit::skip!("needs redis-server")
    };
    let slow = SlowServer::new();
    let mut server = TestServer::start_in(folder.path(), &["--drain-timeout", "1s"]).await;
    let egress = format!(
        "{MACHINE_V4}:{} protocol=redis writes=async flush=60s, {MACHINE_V4}:{} writes=async flush=60s warm=0",
        redis.port,
        slow.port()
    );
    server
        .deploy_ready(&runner_function(folder.path(), "goes", &egress))
        .await;
    let mut order = redis.command_session();
    assert_eq!(order("CLIENT PAUSE 120000 WRITE"), "+OK\r\n");
    let set = |value: &str| {
        format!(
            "s = socket.create_connection(('{MACHINE_V4}', {}), 20)\ns.sendall(b'AUTH pw\\r\\n')\ns.recv(9)\ns.sendall(b'SET k {value}\\r\\n')\nsaid = s.recv(9)",
            redis.port
        )
    };
    assert_eq!(
        run_code(&server, "goes", &set("old")).await,
        "b'+OK\\r\\n'",
        "{}",
        server.log()
    );
    assert_eq!(
        run_code(&server, "goes", &write_values(slow.port(), BYTES)).await,
        "written",
        "{}",
        server.log()
    );
    let instances = server.instance_pids("goes").await;
    let _successor = server.hand_over().await;
    let lives = |pid: &i32| Path::new(&format!("/proc/{pid}")).exists();
    eventually("no instance of the old process is left", async || {
        !instances.iter().any(lives)
    })
    .await;
    assert_eq!(order("EXISTS k"), ":0\r\n", "else this test shows nothing");
    let mut held = slow.accept_client().await;
    let mut all = Vec::new();
    let read = tokio::task::spawn_blocking(move || held.read_to_end(&mut all).map(|_| all.len()));
    assert_eq!(within(read).await.unwrap().unwrap(), BYTES);
    assert_eq!(order("CLIENT UNPAUSE"), "+OK\r\n");
    let status = server.wait_exit().await;
    assert!(status.success(), "{status}\n{}", server.log());
    assert_eq!(order("GET k"), "$3\r\nold\r\n", "{}", server.log());
    assert!(
        !server.log().contains("acknowledged write to"),
        "{}",
        server.log()
    );
}

#[tokio::test]
async fn undeliverable_writes_are_reported_by_the_process_that_accepted_them() {
    need_root!();
    on_own_machine();
    let folder = tempfile::tempdir().unwrap();
    let slow = SlowServer::new();
    let port = slow.port();
    let mut server = TestServer::start_in(folder.path(), &[]).await;
    server
        .deploy_ready(&runner_function(
            folder.path(),
            "goes",
            &format!("{MACHINE_V4}:{port} writes=async flush=60s warm=0"),
        ))
        .await;
    assert_eq!(
        run_code(&server, "goes", &write_values(port, 800_000)).await,
        "written",
        "{}",
        server.log()
    );
    let _successor = server.hand_over().await;
    drop(slow); // not accepted, so its connection is reset
    let status = server.wait_exit().await;
    assert!(status.success(), "{status}\n{}", server.log());
    let report = |line: &str| {
        line.contains("acknowledged write to")
            && line.contains("goes")
            && line.contains(&port.to_string())
    };
    assert!(server.log().lines().any(report), "{}", server.log());
}
