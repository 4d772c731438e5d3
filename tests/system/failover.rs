//! A database that is replaced by another one, at its address or at its name. Calls succeed again
//! as soon as plain connections would.

use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;

use nearpath_kernel::devices::NetworkDevices;
use nearpath_testkit::{eventually, need_root, program, skip};
use rustix::process::Signal;
use serde_json::Value;

use crate::database::TestDatabase;
use crate::egress::{run_code, runner_function};
use crate::external_server::{MACHINE_V4, TestRedis, on_own_machine};
use crate::test_server::TestServer;

/// Address of the other machine.
const OTHER_MACHINE: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 8);
/// Name that resolves to one or the other.
const DATABASE_NAME: &str = "db.shop.internal";
/// A statement in a new session, as a call runs it that opens one and closes it.
const QUERY_ONCE: &str =
    "session = pg.Session(*at)\nsaid = session.ask('SELECT name()')\nsession.close()";

/// A function that runs the code in its body, with the PostgreSQL client `pg`.
pub(crate) fn client_code(folder: &Path, egress: &str) -> Value {
    let spec = runner_function(folder, "goes", egress);
    std::fs::write(folder.join("fn-goes/pg.py"), include_str!("pg.py")).unwrap();
    spec
}

fn free_port() -> u16 {
    TcpListener::bind((MACHINE_V4, 0))
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
}

/// Python code that opens a session and runs `SELECT name()`.
fn query_once(to: impl std::fmt::Display, port: u16) -> String {
    format!("import pg\nat = ('{to}', {port})\n{QUERY_ONCE}")
}

/// Waits until sixteen concurrent calls all succeed with this response.
async fn wait_answered_by(server: &TestServer, code: &str, name: &str) {
    let calls =
        futures_util::future::join_all((0..16).map(|_| run_code(server, "goes", code))).await;
    assert!(
        calls.iter().all(|reply| *reply == format!("['{name}']")),
        "{calls:?}\n{}",
        server.log()
    );
}

#[tokio::test]
async fn another_server_at_the_same_address() {
    need_root!();
    on_own_machine();
    let port = free_port();
    let (Some(mut first), Some(mut second)) = (
        TestDatabase::create("first", MACHINE_V4, port).await,
        TestDatabase::create("second", MACHINE_V4, port).await,
    ) else {
        skip!("needs PostgreSQL")
    };
    first.start().await;
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start_in(folder.path(), &[]).await;
    let egress = format!("{MACHINE_V4}:{port} protocol=postgres user=postgres max=3 wait=30s");
    server
        .deploy_ready(&client_code(folder.path(), &egress))
        .await;
    let once = query_once(MACHINE_V4, port);
    let keep = format!(
        "import builtins, pg\nbuiltins.kept = pg.Session('{MACHINE_V4}', {port})\nsaid = builtins.kept.ask('SELECT name()')"
    );
    let kept = "import builtins\nsaid = builtins.kept.ask('SELECT name()')";
    assert_eq!(
        run_code(&server, "goes", &keep).await,
        "['first']",
        "{}",
        server.log()
    );
    wait_answered_by(&server, &once, "first").await;
    assert!(
        (1..=3).contains(&first.sessions()),
        "some are kept: {}",
        first.sessions()
    );

    first.stop(Signal::KILL);
    let down = run_code(&server, "goes", &once).await;
    assert!(
        down.starts_with("08006") || down == "closed",
        "who comes in between is told: {down}"
    );
    second.start().await;
    assert_eq!(
        run_code(&server, "goes", kept).await,
        "['second']",
        "a session between two statements does not notice"
    );
    wait_answered_by(&server, &once, "second").await;
    assert!(second.sessions() <= 3, "{}", second.sessions());
}

/// Runs nft(8) or ss(8) in the test's own network.
fn answered_by(program: &str, wanted: &str) -> Option<String> {
    let output = Command::new(program)
        .args(wanted.split_whitespace())
        .output()
        .ok()?;
    output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Plays a power failure of a server's machine: its connections are gone without a packet. Returns
/// false if that is impossible here.
fn vanish_silently(server: &mut TestDatabase, port: u16) -> bool {
    let mute = format!(
        "add table ip mute; add chain ip mute out {{ type filter hook output priority 0; }}; add rule ip mute out tcp sport {port} drop"
    );
    let muted = answered_by("nft", &mute).is_some();
    server.stop(Signal::KILL);
    let gone = (0..100).any(|_| {
        answered_by("ss", &format!("-K -t -a sport = :{port}")).is_some_and(|_| {
            answered_by("ss", &format!("-H -t -a -n sport = :{port}"))
                .is_some_and(|left| left.is_empty())
        })
    });
    muted && answered_by("nft", "delete table ip mute").is_some() && gone
}

#[tokio::test]
async fn another_server_at_the_address_of_one_that_vanished_silently() {
    need_root!();
    on_own_machine();
    let port = free_port();
    let (Some(mut first), Some(mut second)) = (
        TestDatabase::create("first", MACHINE_V4, port).await,
        TestDatabase::create("second", MACHINE_V4, port).await,
    ) else {
        skip!("needs PostgreSQL")
    };
    first.start().await;
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start_in(folder.path(), &[]).await;
    let egress = format!("{MACHINE_V4}:{port} protocol=postgres user=postgres max=3 wait=30s");
    server
        .deploy_ready(&client_code(folder.path(), &egress))
        .await;
    let once = query_once(MACHINE_V4, port);
    wait_answered_by(&server, &once, "first").await;
    assert!(first.sessions() > 0, "else this test shows nothing");
    // Connections used within the last seconds are not probed: they may fail, like a running
    // statement.
    tokio::time::sleep(std::time::Duration::from_secs(6)).await;
    if !vanish_silently(&mut first, port) {
        skip!("needs nft, and ss that may end connections");
    }
    second.start().await;
    wait_answered_by(&server, &once, "second").await;
    assert!(second.sessions() <= 3, "{}", second.sessions());
}

/// A hosts file that the server sees instead of the machine's.
struct HostsFile(PathBuf);

impl HostsFile {
    fn new(folder: &Path, meaning: Ipv4Addr) -> Self {
        let names = Self(folder.join("hosts"));
        names.point_to(meaning);
        names
    }

    /// Rewrites the file in place, because it is mounted.
    fn point_to(&self, meaning: Ipv4Addr) {
        std::fs::write(
            &self.0,
            format!("127.0.0.1 localhost\n{meaning} {DATABASE_NAME}\n"),
        )
        .unwrap();
    }

    async fn start_server(&self, folder: &Path) -> TestServer {
        let mut command = Command::new("unshare");
        command.args([
            "--mount",
            "sh",
            "-c",
            "mount --bind \"$0\" /etc/hosts && exec \"$@\"",
        ]);
        command.arg(&self.0).arg(program("nearpath"));
        let mut server = TestServer::spawn_with(command, folder, &[]);
        server.wait_ready().await;
        server
    }
}

/// Starts two servers on two machines.
async fn start_two(port: u16) -> Option<(TestDatabase, TestDatabase)> {
    let mut devices = NetworkDevices::open().unwrap();
    let loopback = devices.device_index("lo").unwrap();
    devices
        .add_address(loopback, (OTHER_MACHINE.into(), 32))
        .unwrap();
    let (mut first, mut second) = (
        TestDatabase::create("first", MACHINE_V4, port).await?,
        TestDatabase::create("second", OTHER_MACHINE, port).await?,
    );
    first.start().await;
    second.start().await;
    Some((first, second))
}

#[tokio::test]
async fn a_name_that_means_another_server_once_the_first_is_dead() {
    need_root!();
    on_own_machine();
    let port = free_port();
    let Some((mut first, second)) = start_two(port).await else {
        skip!("needs PostgreSQL")
    };
    let folder = tempfile::tempdir().unwrap();
    let names_folder = tempfile::tempdir().unwrap();
    let names = HostsFile::new(names_folder.path(), MACHINE_V4);
    let server = names.start_server(folder.path()).await;
    let egress = format!("{DATABASE_NAME}:{port} protocol=postgres user=postgres max=3 wait=30s");
    server
        .deploy_ready(&client_code(folder.path(), &egress))
        .await;
    wait_answered_by(&server, &query_once(DATABASE_NAME, port), "first").await;
    first.stop(Signal::KILL);
    let down = run_code(&server, "goes", &query_once(DATABASE_NAME, port)).await;
    assert!(down.starts_with("08006") || down == "closed", "{down}");
    names.point_to(OTHER_MACHINE);
    wait_answered_by(&server, &query_once(DATABASE_NAME, port), "second").await;
    assert!(second.sessions() <= 3, "{}", second.sessions());
}

#[tokio::test]
async fn a_name_that_means_another_server_while_the_first_still_answers() {
    need_root!();
    on_own_machine();
    let port = free_port();
    let Some((first, second)) = start_two(port).await else {
        skip!("needs PostgreSQL")
    };
    let folder = tempfile::tempdir().unwrap();
    let names_folder = tempfile::tempdir().unwrap();
    let names = HostsFile::new(names_folder.path(), MACHINE_V4);
    let server = names.start_server(folder.path()).await;
    let egress = format!("{DATABASE_NAME}:{port} protocol=postgres user=postgres max=3 wait=30s");
    server
        .deploy_ready(&client_code(folder.path(), &egress))
        .await;
    wait_answered_by(&server, &query_once(DATABASE_NAME, port), "first").await;
    names.point_to(OTHER_MACHINE);
    let moved =
        async || run_code(&server, "goes", &query_once(DATABASE_NAME, port)).await == "['second']";
    eventually("the name is asked for again", moved).await;
    wait_answered_by(&server, &query_once(DATABASE_NAME, port), "second").await;
    eventually("nothing is kept at the first one", async || {
        first.sessions() == 0
    })
    .await;
    assert!(second.sessions() <= 3, "{}", second.sessions());
}

#[tokio::test]
async fn a_redis_that_starts_anew_is_not_noticed() {
    need_root!();
    on_own_machine();
    let folder = tempfile::tempdir().unwrap();
    let Some(redis) = TestRedis::start(folder.path(), "sesame").await else {
        skip!("needs redis-server")
    };
    let port = redis.port;
    let server = TestServer::start_in(folder.path(), &[]).await;
    let secret = serde_json::json!({ "name": "door", "value": "sesame" }).to_string();
    assert!(
        server
            .send_request(http::Method::POST, "/system/secrets", secret)
            .await
            .status()
            .is_success()
    );
    let egress = format!("{MACHINE_V4}:{port} protocol=redis password=secret:door max=2");
    server
        .deploy_ready(&runner_function(folder.path(), "goes", &egress))
        .await;
    let ask = "kept.sendall(b'PING\\r\\n')\nsaid = kept.recv(99)";
    let open = format!(
        "import builtins\nkept = builtins.kept = socket.create_connection(('{MACHINE_V4}', {port}), 20)\n{ask}"
    );
    let again = format!("import builtins\nkept = builtins.kept\n{ask}");
    assert_eq!(
        run_code(&server, "goes", &open).await,
        "b'+PONG\\r\\n'",
        "{}",
        server.log()
    );
    drop(redis); // kills it
    let Some(_anew) = TestRedis::start_at(folder.path(), "sesame", port).await else {
        unreachable!("it was there before")
    };
    assert_eq!(
        run_code(&server, "goes", &again).await,
        "b'+PONG\\r\\n'",
        "{}",
        server.log()
    );
    assert_eq!(
        run_code(&server, "goes", &open).await,
        "b'+PONG\\r\\n'",
        "{}",
        server.log()
    );
}
