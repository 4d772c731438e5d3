//! A process that takes over from another one: what was asked is answered by the old one, what is new comes to the new one.

mod client;
mod going_out;

use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::{Method, StatusCode};
use nearpath_kernel::reuseport;
use nearpath_testkit::{eventually, need_root, within};
use rustix::net::sockopt::set_socket_reuseport;
use rustix::net::{AddressFamily, SocketType, bind, socket};
use rustix::process::Signal;
use serde_json::json;

use crate::house::{House, echo, http_function, script};
use crate::http3;
use crate::load::open_loop;
use client::{Failure, Line, Open};

/// Connections that are there when the new process comes: each of the two threads has some.
const LINES: usize = 8;

/// A house with HTTP/3 and a function that sends back what it gets, as it gets it.
struct Scene {
    house: House,
    at: SocketAddr,
    authority: PathBuf,
    _folder: tempfile::TempDir,
}

impl Scene {
    async fn new(options: &[&str]) -> Self {
        let folder = tempfile::Builder::new().prefix("nearpath-test-").tempdir().unwrap();
        let options = [&["--threads", "2"], options].concat();
        let (house, at, authority) = http3::house(folder.path(), &options).await;
        house.deploy_ready(&echo(&house.data_dir, "echo")).await;
        Self { house, at, authority, _folder: folder }
    }

    async fn line(&self) -> Line {
        Line::to(self.at, &self.authority).await.unwrap()
    }

    /// Connections with a request on each that is half-way.
    async fn lines(&self) -> Vec<(Line, Open)> {
        let mut lines = Vec::new();
        for _ in 0..LINES {
            let mut line = self.line().await;
            let mut open = line.begin("echo").await.unwrap();
            open.echo("first").await.unwrap();
            lines.push((line, open));
        }
        lines
    }
}

/// What the operator reads of the process that he reaches.
async fn metrics(house: &House) -> String {
    let request = http::Request::get("/metrics").body(http_body_util::Full::default()).unwrap();
    let answer = within(crate::house::send(house.admin, request)).await.unwrap();
    String::from_utf8(answer.body().to_vec()).unwrap()
}

async fn connections(house: &House) -> u64 {
    let text = metrics(house).await;
    let line = text.lines().find_map(|line| line.strip_prefix("nearpath_http3_connections_total "));
    line.unwrap().parse().unwrap()
}

/// GOAWAY came: nothing new is begun on the connection.
async fn told_to_leave(line: &mut Line) {
    eventually("it is told to leave", async || match line.begin("echo").await {
        Err(error) => error.to_string().contains("closing"),
        Ok(open) => {
            let _ = open.finish().await; // it was on its way when GOAWAY went
            false
        }
    })
    .await;
}

#[tokio::test]
async fn requests_over_http3_outlive_the_process_that_took_them() {
    need_root!();
    let mut scene = Scene::new(&[]).await;
    let mut lines = scene.lines().await;
    let heir = scene.house.succeeded().await;
    for (line, open) in &mut lines {
        told_to_leave(line).await;
        open.echo("second").await.unwrap();
        line.moves();
        open.echo("third").await.unwrap();
    }
    assert_eq!(connections(&heir).await, 0, "their packets do not come to the new one");
    for _ in 0..LINES {
        assert_eq!(scene.line().await.ask("echo", "new").await.unwrap(), (StatusCode::OK, "new".into()));
    }
    assert_eq!(connections(&heir).await, LINES as u64);
    for (_line, open) in lines {
        assert_eq!(open.finish().await.unwrap(), "");
    }
    let status = within(async { scene.house.wait().await }).await;
    assert!(status.success(), "{status}\n{}", scene.house.log());
    assert_eq!(scene.line().await.ask("echo", "still").await.unwrap(), (StatusCode::OK, "still".into()));
    heir.deploy_ready(&echo(&heir.data_dir, "later")).await;
}

/// Leads every packet to the socket with a number.
fn steer_all_to(number: u32, at: SocketAddr) -> UdpSocket {
    let socket = socket(AddressFamily::INET, SocketType::DGRAM, None).unwrap();
    set_socket_reuseport(&socket, true).unwrap();
    bind(&socket, &at).unwrap();
    reuseport::attach_steering_program(&socket, &[(0x06, 0, 0, number)]).unwrap();
    socket.into()
}

#[tokio::test]
async fn control_without_steering_they_do_not() {
    need_root!();
    let scene = Scene::new(&[]).await;
    let mut lines = scene.lines().await;
    let _heir = scene.house.succeeded().await;
    let _same_port = steer_all_to(2, scene.at); // the new process's first socket: those of the old one are 0 and 1
    for (_, open) in &mut lines {
        let error = open.echo("second").await.unwrap_err();
        assert!(error.to_string().to_lowercase().contains("reset"), "{error}");
    }
}

#[tokio::test]
async fn three_processes_at_a_time() {
    need_root!();
    let mut scene = Scene::new(&[]).await;
    let mut first = scene.lines().await;
    let mut heir = scene.house.succeeded().await;
    let mut second = scene.lines().await;
    let last = heir.succeeded().await;
    let third = scene.lines().await;
    for (_, open) in first.iter_mut().chain(&mut second) {
        open.echo("second").await.unwrap();
    }
    for (_line, open) in second.into_iter().chain(first) {
        assert_eq!(open.finish().await.unwrap(), "");
    }
    within(async { (heir.wait().await, scene.house.wait().await) }).await;
    for (_line, open) in third {
        assert_eq!(open.finish().await.unwrap(), "");
    }
    // The next one takes the place of the first one, whose sockets the last one has kept.
    let mut again = scene.lines().await;
    let mut last = last;
    let next = last.succeeded().await;
    for (_, open) in &mut again {
        open.echo("second").await.unwrap();
    }
    for _ in 0..LINES {
        assert_eq!(scene.line().await.ask("echo", "new").await.unwrap(), (StatusCode::OK, "new".into()));
    }
    assert_eq!(connections(&next).await, LINES as u64);
    drop(again);
    within(async { last.wait().await }).await;
}

#[tokio::test]
async fn the_new_process_may_have_more_threads_or_fewer() {
    need_root!();
    let scene = Scene::new(&[]).await;
    let mut houses: Vec<House> = Vec::new();
    let mut lines = scene.lines().await;
    for threads in ["3", "1", "2"] {
        let newest = houses.last().unwrap_or(&scene.house);
        houses.push(newest.succeeded_with(&["--threads", threads]).await);
        lines.extend(scene.lines().await);
        for _ in 0..LINES {
            // Each socket that is open has somebody who accepts on it.
            assert_eq!(scene.house.call("echo", "tcp").await.body(), "tcp");
        }
    }
    for (_, open) in &mut lines {
        open.echo("second").await.unwrap();
    }
}

#[tokio::test]
async fn a_request_that_takes_too_long_is_cut_at_the_drains_end() {
    need_root!();
    let mut scene = Scene::new(&["--drain-timeout", "500ms"]).await;
    let mut lines = scene.lines().await;
    let _heir = scene.house.succeeded().await;
    within(async { scene.house.wait().await }).await;
    for (line, open) in &mut lines {
        assert!(open.rest().await.is_err());
        within(line.quic.closed()).await;
    }
    assert_eq!(scene.line().await.ask("echo", "new").await.unwrap(), (StatusCode::OK, "new".into()));
}

/// Folders of a node's cgroups.
fn cgroups(data_dir: &Path, run: &str) -> Vec<PathBuf> {
    let node = std::fs::read_to_string(data_dir.join("node-id")).unwrap();
    let all = std::fs::read_dir("/sys/fs/cgroup").unwrap().map(|one| one.unwrap().path());
    let of_node = all.map(|at| at.join("nearpath").join(format!("{}{run}", node.trim())));
    of_node.filter(|at| at.exists()).collect()
}

#[tokio::test]
async fn who_is_killed_while_it_drains_leaves_nothing_and_its_clients_are_told() {
    need_root!();
    let mut scene = Scene::new(&[]).await;
    let mut lines = scene.lines().await;
    let old = scene.house.instance_pids("echo").await;
    let heir = scene.house.succeeded().await;
    assert!(!cgroups(&heir.data_dir, "").is_empty(), "else this test shows nothing");
    scene.house.end(Signal::KILL);
    for (line, open) in &mut lines {
        assert!(open.echo("second").await.is_err());
        let closed = within(line.quic.closed()).await;
        assert!(matches!(closed, quinn::ConnectionError::Reset), "{closed}"); // not silence: the new one answers for it
    }
    eventually("nothing is left", async || {
        cgroups(&heir.data_dir, "").is_empty() && old.iter().all(|pid| !Path::new(&format!("/proc/{pid}")).exists())
    })
    .await;
    assert!(!cgroups(&heir.data_dir, ".1").is_empty(), "but what is the new one's");
    assert_eq!(scene.line().await.ask("echo", "new").await.unwrap(), (StatusCode::OK, "new".into()));
}

#[tokio::test]
async fn a_new_process_that_dies_half_way_costs_nothing_but_orders() {
    need_root!();
    let scene = Scene::new(&[]).await;
    let idle = script(&scene.house.data_dir, "asleep", "exec cat\n");
    scene.house.deploy_ready(&idle).await;
    scene.house.scale("asleep", 0).await;
    scene.house.until_available("asleep", 0).await;
    // One that takes for ever to start, so that the new process waits for it.
    let slow = http_function(&scene.house.data_dir, "slow", "self.answer(200, b'')");
    scene.house.deploy_ready(&slow).await;
    let server = scene.house.data_dir.join("fn-slow/server.py");
    let mut lines = scene.lines().await;
    let refused = scene.house.heir(&["--watchdog", "/nonexistent"]);
    let mut refused = refused;
    assert!(!within(async { refused.wait().await }).await.success());
    scene.house.deploy(&echo(&scene.house.data_dir, "order")).await;

    let mut never = slow.clone();
    std::fs::write(server, "import time\ntime.sleep(3600)\n").unwrap();
    never["service"] = json!("never");
    scene.house.deploy(&never).await;
    let mut heir = scene.house.heir(&[]);
    let order = echo(&scene.house.data_dir, "late").to_string();
    eventually("orders are refused", async || {
        let answer = scene.house.ask(Method::POST, "/system/functions", order.clone()).await;
        answer.status() == StatusCode::SERVICE_UNAVAILABLE
    })
    .await;
    heir.end(Signal::KILL);
    for (_, open) in &mut lines {
        open.echo("second").await.unwrap();
    }
    assert_eq!(scene.line().await.ask("echo", "new").await.unwrap(), (StatusCode::OK, "new".into()));
    assert_eq!(scene.house.call("asleep", "wakes").await.status(), StatusCode::OK);
    for (_line, open) in lines {
        assert_eq!(open.finish().await.unwrap(), "");
    }
}

#[tokio::test]
async fn it_needs_nobody_to_take_over_from() {
    need_root!();
    let folder = tempfile::tempdir().unwrap();
    let house = House::start_in(folder.path(), &["--take-over"]).await;
    house.deploy_ready(&echo(&house.data_dir, "echo")).await;
    assert_eq!(house.call("echo", "alone").await.body(), "alone");
}

#[tokio::test]
async fn no_request_is_lost() {
    need_root!();
    let scene = Scene::new(&[]).await;
    let mut others = Vec::new();
    let far = http3::distance::before(scene.at).await;
    let over_tcp = open_loop(scene.house.addr, "/function/echo", 50, Duration::from_secs(6));
    let over_http3 = async {
        let near = futures_util::future::join_all((0..2).map(|_| again_and_again(scene.at, &scene.authority)));
        // Whose handshakes take 40 ms: some are always under way.
        let far = futures_util::future::join_all((0..8).map(|_| again_and_again(far, &scene.authority)));
        let (near, far) = tokio::join!(near, far);
        near.into_iter().chain(far).flatten().collect::<Vec<_>>()
    };
    let upgrades = async {
        let mut newest = &scene.house;
        for _ in 0..3 {
            others.push(newest.succeeded().await);
            newest = others.last().unwrap();
        }
    };
    let all = async { tokio::join!(over_tcp, over_http3, upgrades) };
    let (outcome, failures, ()) = within(all).await;
    assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
    assert!(failures.is_empty(), "{failures:?}");
}

/// Connects and asks, for six seconds, and gives what failed.
async fn again_and_again(at: SocketAddr, authority: &Path) -> Vec<String> {
    let until = tokio::time::Instant::now() + Duration::from_secs(6);
    let mut failures = Vec::new();
    while tokio::time::Instant::now() < until {
        failures.extend(once(at, authority).await.err().map(|error| error.to_string()));
    }
    failures
}

/// As clients do: a request that was not taken, because the connection is about to end or has ended in good order, goes on a new one.
async fn once(at: SocketAddr, authority: &Path) -> Result<(), Failure> {
    const NOT_TAKEN: [&str; 3] = ["closing", "H3_REQUEST_REJECTED", "H3_NO_ERROR"];
    loop {
        let mut line = Line::to(at, authority).await?;
        let Err(error) = line.ask("echo", "x").await else { return Ok(()) };
        let told = error.to_string();
        if told.contains("broke off") || !NOT_TAKEN.iter().any(|word| told.contains(word)) {
            return Err(error);
        }
    }
}
