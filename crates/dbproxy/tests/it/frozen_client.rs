//! A client that is frozen in the middle of a reply and thawed gets its own replies or a clean end.
//! Other clients wait for it no longer than `max` requires.

use std::net::SocketAddr;
use std::process::Stdio;

use nearpath_testkit::Freezer;
use nearpath_types::egress::{EgressSpec, PoolingMode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};

use crate::clients::{run_program, succeeds};
use crate::fixture::{AdapterFixture, run_local};
use crate::postgres_server::{PASSWORD, PostgresServer, psql_command};
use crate::redis::need;
use crate::{mysql, postgres, redis, server};

/// More than all buffers on the path hold.
const LARGE_REPLY_BYTES: usize = 12_000_000;
/// A connection for the frozen client, one for all others.
const MAX_CONNECTIONS: u32 = 2;

/// A program that reads statements and prints their results line by line.
struct LineClient(Child);

impl LineClient {
    fn start(mut command: Command) -> Self {
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true);
        Self(command.spawn().unwrap())
    }

    async fn send_line(&mut self, statement: &str) {
        let received = self
            .0
            .stdin
            .as_mut()
            .unwrap()
            .write_all(format!("{statement}\n").as_bytes())
            .await;
        received.unwrap();
    }

    /// Reads so many bytes of its output.
    async fn read_bytes(&mut self, octets: usize) -> String {
        let mut heard = vec![0; octets];
        self.0
            .stdout
            .as_mut()
            .unwrap()
            .read_exact(&mut heard)
            .await
            .unwrap();
        String::from_utf8(heard).unwrap()
    }

    /// Reads the rest of its output after the last statement.
    async fn read_to_end(&mut self) -> String {
        drop(self.0.stdin.take());
        let mut rest = String::new();
        self.0
            .stdout
            .as_mut()
            .unwrap()
            .read_to_string(&mut rest)
            .await
            .unwrap();
        rest
    }
}

/// A protocol: its client, the statement that returns a word, and the one that repeats a character.
struct EchoProtocol<'a> {
    client: &'a dyn Fn(SocketAddr) -> Command,
    echo: fn(&str) -> String,
    large_reply: fn(&str) -> String,
}

impl EchoProtocol<'_> {
    /// Asserts that another client gets back its own word.
    async fn assert_echo(&self, at: SocketAddr, word: &str) {
        let received =
            run_program(&mut (self.client)(at), &format!("{}\n", (self.echo)(word))).await;
        assert_eq!(received, format!("{word}\n"));
    }
}

async fn freeze_and_thaw(
    fixture: &AdapterFixture,
    speech: EchoProtocol<'_>,
    cut: impl AsyncFnOnce(),
) {
    let mut held = LineClient::start((speech.client)(fixture.at));
    held.send_line(&(speech.echo)("first")).await;
    assert_eq!(held.read_bytes(6).await, "first\n");
    let freezer = Freezer::around_process(&[held.0.id().unwrap()]).unwrap();
    held.send_line(&(speech.large_reply)("z")).await;
    held.read_bytes(100).await;
    freezer.freeze().await;
    for number in 0..10 {
        speech
            .assert_echo(fixture.at, &format!("other{number}"))
            .await;
    }
    freezer.thaw();
    let large = held.read_bytes(LARGE_REPLY_BYTES - 100 + 1).await;
    assert!(
        large.trim_end().bytes().all(|letter| letter == b'z'),
        "another client's reply"
    );
    held.send_line(&(speech.echo)("second")).await;
    assert_eq!(held.read_bytes(7).await, "second\n");
    lose_backend_while_frozen(&mut held, &freezer, &speech, cut).await;
    speech.assert_echo(fixture.at, "after").await;
    assert!(
        fixture.backends.max_open() <= MAX_CONNECTIONS,
        "{} were open",
        fixture.backends.max_open()
    );
}

/// Ends the frozen client's backend.
async fn lose_backend_while_frozen(
    held: &mut LineClient,
    freezer: &Freezer,
    speech: &EchoProtocol<'_>,
    cut: impl AsyncFnOnce(),
) {
    freezer.freeze().await;
    cut().await;
    freezer.thaw();
    held.send_line(&(speech.echo)("third")).await;
    let rest = held.read_to_end().await;
    assert!(!rest.contains("other") && !rest.contains('z'), "{rest}");
}

fn limit_connections(egress: EgressSpec) -> EgressSpec {
    EgressSpec {
        max: MAX_CONNECTIONS,
        ..egress
    }
}

/// Returns whether control groups can freeze a process: tried.
fn can_freeze() -> bool {
    let sleeps = Command::new("sleep").arg("60").kill_on_drop(true).spawn();
    sleeps.is_ok_and(|sleeps| Freezer::around_process(&[sleeps.id().unwrap()]).is_some())
}

macro_rules! need_freezer {
    () => {
        if !can_freeze() {
            nearpath_testkit::skip!("needs root and a freezer of control groups")
        }
    };
}

#[test]
fn a_frozen_postgresql_client_gets_its_own_replies() {
    run_local(async {
        need_freezer!();
        let server = need!(PostgresServer::start_with(&[], &[]).await, "PostgreSQL");
        for mode in [PoolingMode::Transaction, PoolingMode::Session] {
            let fixture =
                postgres::open_fixture(limit_connections(postgres::as_function(server.at, mode)))
                    .await;
            let client = |at| psql_command(at, "postgres", PASSWORD, &[]);
            let (word, large) = (
                (|word: &str| format!("SELECT '{word}';")) as fn(&str) -> String,
                (|letter: &str| format!("SELECT repeat('{letter}', {LARGE_REPLY_BYTES});"))
                    as fn(&str) -> String,
            );
            let cut = async || {
                let sql = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
                server.sql(sql).await;
            };
            freeze_and_thaw(
                &fixture,
                EchoProtocol {
                    client: &client,
                    echo: word,
                    large_reply: large,
                },
                cut,
            )
            .await;
        }
    });
}

#[test]
fn a_frozen_mysql_client_gets_its_own_replies() {
    run_local(async {
        need_freezer!();
        let server = need!(server::start_mariadb(&[]).await, "mariadbd");
        let fixture = mysql::open_with_client_login(&server, limit_connections).await;
        let client = |at: SocketAddr| {
            let mut client = Command::new("mariadb");
            client.args([
                "--no-defaults",
                "-N",
                "-B",
                "-n",
                "--skip-ssl",
                "-ufn",
                "-ppw",
                "-h127.0.0.1",
                "--max-allowed-packet=64M",
            ]);
            client.arg(format!("-P{}", at.port())).arg("shop");
            client
        };
        let (word, large) = (
            (|word: &str| format!("SELECT '{word}';")) as fn(&str) -> String,
            (|letter: &str| format!("SELECT REPEAT('{letter}', {LARGE_REPLY_BYTES});"))
                as fn(&str) -> String,
        );
        freeze_and_thaw(
            &fixture,
            EchoProtocol {
                client: &client,
                echo: word,
                large_reply: large,
            },
            async || (),
        )
        .await;
    });
}

#[test]
fn a_frozen_redis_client_gets_its_own_replies() {
    run_local(async {
        need_freezer!();
        let server = need!(server::start_redis(&[]).await, "redis-server");
        let client = |at: SocketAddr| {
            let mut client = Command::new("redis-cli");
            client.args(["-h", "127.0.0.1", "-p", &at.port().to_string(), "--raw"]);
            client
        };
        let fill = format!(
            "SETRANGE large {} z\nEVAL \"redis.call('SET', 'large', string.rep('z', {LARGE_REPLY_BYTES}))\" 0\n",
            LARGE_REPLY_BYTES - 1
        );
        run_program(&mut client(server.at), &fill).await;
        let fixture = redis::open_fixture_with(&server, limit_connections).await;
        let (word, large) = (
            (|word: &str| format!("ECHO {word}")) as fn(&str) -> String,
            (|_: &str| "GET large".to_owned()) as fn(&str) -> String,
        );
        let cut = async || {
            assert!(succeeds(client(server.at).args(["CLIENT", "KILL", "TYPE", "normal"])).await);
        };
        freeze_and_thaw(
            &fixture,
            EchoProtocol {
                client: &client,
                echo: word,
                large_reply: large,
            },
            cut,
        )
        .await;
    });
}
