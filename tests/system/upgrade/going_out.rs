//! What goes outside while one process takes over from another: each has an exit, stand-ins and ceilings of its own.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;

use nearpath_testkit::{eventually, need_root, within};
use serde_json::json;

use crate::egress::{hello, run, runner};
use crate::house::{House, need_forwarding};
use crate::outside::{MACHINE, NAMED, Outside, Redis, on_a_machine};
use crate::shm::cli;

/// A place that says nothing until it is told to.
struct Slow(TcpListener);

impl Slow {
    fn new() -> Self {
        Self(TcpListener::bind((MACHINE, 0)).unwrap())
    }

    fn port(&self) -> u16 {
        self.0.local_addr().unwrap().port()
    }

    async fn came(&self) -> TcpStream {
        let listener = self.0.try_clone().unwrap();
        within(tokio::task::spawn_blocking(move || listener.accept().unwrap().0)).await.unwrap()
    }
}

/// Waits for the end of what is open for nobody.
async fn ends(mut client: TcpStream) {
    let ended = tokio::task::spawn_blocking(move || client.read(&mut [0; 9]));
    assert!(within(ended).await.unwrap().is_ok_and(|read| read == 0), "it is closed in good order");
}

async fn goes_on_in_both(options: &[&str]) {
    on_a_machine();
    let (outside, slow) = (Outside::at(Ipv4Addr::LOCALHOST), Slow::new());
    let folder = tempfile::tempdir().unwrap();
    let mut house = House::start_in(folder.path(), options).await;
    let (port, slow_port) = (outside.port, slow.port());
    let egress = format!("{NAMED}:{port} max=2, {MACHINE}:{slow_port} warm=0");
    house.deploy_ready(&runner(folder.path(), "goes", &egress)).await;
    assert_eq!(run(&house, "goes", &hello(NAMED, port)).await, "heard hello", "{}", house.log());
    let under_way = hello(MACHINE, slow_port);
    let heir = {
        let call = run(&house, "goes", &under_way);
        let change = async {
            let mut held = slow.came().await;
            let heir = house.succeeded().await;
            for _ in 0..5 {
                assert_eq!(run(&heir, "goes", &hello(NAMED, port)).await, "heard hello", "{}", heir.log());
            }
            held.write_all(b"at last\n").unwrap();
            heir
        };
        let (said, heir) = within(async { tokio::join!(call, change) }).await;
        assert_eq!(said, "at last", "{}", house.log());
        heir
    };
    let status = within(async { house.wait().await }).await;
    assert!(status.success(), "{status}\n{}", house.log());
    for _ in 0..5 {
        assert_eq!(run(&heir, "goes", &hello(NAMED, port)).await, "heard hello", "{}", heir.log());
    }
    heir.scale("goes", 0).await;
    eventually("every connection ends, those of both processes", async || {
        let seen = outside.seen();
        seen.ended + seen.broken == seen.came
    })
    .await;
    assert!(outside.seen().most <= 4, "each process has a ceiling of two: {:?}", outside.seen());
}

#[tokio::test]
async fn both_processes_reach_what_is_declared() {
    need_root!();
    goes_on_in_both(&[]).await;
}

#[tokio::test]
async fn both_processes_reach_what_is_declared_through_forwarders_of_their_own() {
    need_forwarding!();
    goes_on_in_both(&["--forward", "tc"]).await;
}

/// As the runner says it: one connection, `INCR n`.
fn count(port: u16) -> String {
    format!(
        "s = socket.create_connection(('{MACHINE}', {port}), 20)\ns.sendall(b'*2\\r\\n$4\\r\\nINCR\\r\\n$1\\r\\nn\\r\\n')\nsaid = s.recv(99).decode().strip()\ns.close()"
    )
}

/// Connections of clients that the server has now, the one that asks not counted.
fn clients(redis: &Redis) -> u32 {
    redis.info("connected_clients").unwrap().parse::<u32>().unwrap() - 1
}

async fn deploy(house: &House, folder: &Path, redis: &Redis, slow: u16) {
    let secret = json!({ "name": "door", "value": "sesame" }).to_string();
    assert!(house.ask(http::Method::POST, "/system/secrets", secret).await.status().is_success());
    let egress = format!("{MACHINE}:{} password=secret:door protocol=redis, {MACHINE}:{slow} warm=0", redis.port);
    house.deploy_ready(&runner(folder, "goes", &egress)).await;
}

#[tokio::test]
async fn who_was_taken_over_from_keeps_nothing_for_nobody() {
    need_root!();
    on_a_machine();
    let folder = tempfile::tempdir().unwrap();
    let Some(redis) = Redis::start(folder.path(), "sesame").await else {
        nearpath_testkit::skip!("needs redis-server")
    };
    let (slow, idle) = (Slow::new(), Slow::new());
    let mut house = House::start_in(folder.path(), &[]).await;
    deploy(&house, folder.path(), &redis, slow.port()).await;
    let warm = runner(folder.path(), "warm", &format!("{MACHINE}:{} warm=1", idle.port()));
    house.deploy_ready(&warm).await;
    let kept_warm = idle.came().await;
    assert_eq!(run(&house, "goes", &count(redis.port)).await, ":1", "{}", house.log());
    eventually("a used connection is kept", async || clients(&redis) >= 1).await;
    let under_way = hello(MACHINE, slow.port());
    let call = run(&house, "goes", &under_way);
    let change = async {
        let mut held = slow.came().await;
        let heir = house.succeeded().await;
        ends(kept_warm).await;
        let own = |house: &House| {
            let all = cli(house, &["pool", "ls", "goes"]);
            let open = all.as_array().unwrap().iter().map(|one| one["open"].as_u64().unwrap()).sum::<u64>();
            open as u32
        };
        eventually("what is left at the database is the new process's", async || clients(&redis) == own(&heir)).await;
        assert_eq!(run(&heir, "goes", &count(redis.port)).await, ":2", "{}", heir.log());
        held.write_all(b"at last\n").unwrap();
        heir
    };
    let (said, _heir) = within(async { tokio::join!(call, change) }).await;
    assert_eq!(said, "at last", "{}", house.log());
    assert!(within(async { house.wait().await }).await.success());
}

/// A call that writes so much without waiting for anybody, and closes.
fn write(port: u16, bytes: usize) -> String {
    format!(
        "s = socket.create_connection(('{MACHINE}', {port}), 20)\ns.sendall(b'x' * {bytes})\ns.close()\nsaid = 'written'"
    )
}

/// What was taken (`writes=async`) and could not be delivered before another process took over is delivered by the old one, which waits for that.
#[tokio::test]
async fn what_was_taken_is_delivered_by_who_took_it() {
    const BYTES: usize = 800_000;
    need_root!();
    on_a_machine();
    let folder = tempfile::tempdir().unwrap();
    let Some(redis) = Redis::start(folder.path(), "pw").await else { nearpath_testkit::skip!("needs redis-server") };
    let slow = Slow::new();
    let mut house = House::start_in(folder.path(), &["--drain-timeout", "1s"]).await;
    let egress = format!(
        "{MACHINE}:{} protocol=redis writes=async flush=60s, {MACHINE}:{} writes=async flush=60s warm=0",
        redis.port,
        slow.port()
    );
    house.deploy_ready(&runner(folder.path(), "goes", &egress)).await;
    let mut order = redis.orders();
    assert_eq!(order("CLIENT PAUSE 120000 WRITE"), "+OK\r\n");
    let set = |value: &str| {
        format!(
            "s = socket.create_connection(('{MACHINE}', {}), 20)\ns.sendall(b'AUTH pw\\r\\n')\ns.recv(9)\ns.sendall(b'SET k {value}\\r\\n')\nsaid = s.recv(9)",
            redis.port
        )
    };
    assert_eq!(run(&house, "goes", &set("old")).await, "b'+OK\\r\\n'", "{}", house.log());
    assert_eq!(run(&house, "goes", &write(slow.port(), BYTES)).await, "written", "{}", house.log());
    let instances = house.instance_pids("goes").await;
    let _heir = house.succeeded().await;
    let lives = |pid: &i32| Path::new(&format!("/proc/{pid}")).exists();
    eventually("no instance of the old process is left", async || !instances.iter().any(lives)).await;
    assert_eq!(order("EXISTS k"), ":0\r\n", "else this test shows nothing");
    let mut held = slow.came().await;
    let mut all = Vec::new();
    let read = tokio::task::spawn_blocking(move || held.read_to_end(&mut all).map(|_| all.len()));
    assert_eq!(within(read).await.unwrap().unwrap(), BYTES);
    assert_eq!(order("CLIENT UNPAUSE"), "+OK\r\n");
    let status = within(async { house.wait().await }).await;
    assert!(status.success(), "{status}\n{}", house.log());
    assert_eq!(order("GET k"), "$3\r\nold\r\n", "{}", house.log());
    assert!(!house.log().contains("did not get there"), "{}", house.log());
}

#[tokio::test]
async fn what_was_taken_and_cannot_be_delivered_is_told_by_who_took_it() {
    need_root!();
    on_a_machine();
    let folder = tempfile::tempdir().unwrap();
    let slow = Slow::new();
    let port = slow.port();
    let mut house = House::start_in(folder.path(), &[]).await;
    house
        .deploy_ready(&runner(folder.path(), "goes", &format!("{MACHINE}:{port} writes=async flush=60s warm=0")))
        .await;
    assert_eq!(run(&house, "goes", &write(port, 800_000)).await, "written", "{}", house.log());
    let _heir = house.succeeded().await;
    drop(slow); // nobody took it, and what was sent there is reset
    let status = within(async { house.wait().await }).await;
    assert!(status.success(), "{status}\n{}", house.log());
    let told =
        |line: &str| line.contains("did not get there") && line.contains("goes") && line.contains(&port.to_string());
    assert!(house.log().lines().any(told), "{}", house.log());
}
