//! A client that is frozen in the middle of a reply and thawed: what it hears after that is its own, or a clean end, and others never wait for it
//! longer than the ceiling makes them.

use std::net::SocketAddr;
use std::process::Stdio;

use nearpath_testkit::Freezer;
use nearpath_types::egress::{Egress, Mode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};

use crate::clients::{ran, run};
use crate::postgres_server::{PASSWORD, Postgres, psql};
use crate::redis::need;
use crate::stage::{Stage, on_stage};
use crate::{mysql, postgres, redis, server};

/// More than all buffers on its way hold.
const LARGE: usize = 12_000_000;
/// Of the pool: one for the frozen client, one for all others.
const MOST: u32 = 2;

/// A program that reads statements and prints what they bring, line by line.
struct Talker(Child);

impl Talker {
    fn start(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
        Self(command.spawn().unwrap())
    }

    async fn say(&mut self, statement: &str) {
        let said = self.0.stdin.as_mut().unwrap().write_all(format!("{statement}\n").as_bytes()).await;
        said.unwrap();
    }

    /// So many octets of what it prints.
    async fn hear(&mut self, octets: usize) -> String {
        let mut heard = vec![0; octets];
        self.0.stdout.as_mut().unwrap().read_exact(&mut heard).await.unwrap();
        String::from_utf8(heard).unwrap()
    }

    /// All that it prints to its end, after the last statement.
    async fn rest(&mut self) -> String {
        drop(self.0.stdin.take());
        let mut rest = String::new();
        self.0.stdout.as_mut().unwrap().read_to_string(&mut rest).await.unwrap();
        rest
    }
}

/// A protocol: its client, the statement that says a word back, the one that says a letter back so often.
struct Speech<'a> {
    client: &'a dyn Fn(SocketAddr) -> Command,
    word: fn(&str) -> String,
    large: fn(&str) -> String,
}

impl Speech<'_> {
    /// What another client hears that says a word.
    async fn hears(&self, at: SocketAddr, word: &str) {
        let said = run(&mut (self.client)(at), &format!("{}\n", (self.word)(word))).await;
        assert_eq!(said, format!("{word}\n"));
    }
}

async fn freeze_and_thaw(stage: &Stage, speech: Speech<'_>, cut: impl AsyncFnOnce()) {
    let mut held = Talker::start((speech.client)(stage.at));
    held.say(&(speech.word)("first")).await;
    assert_eq!(held.hear(6).await, "first\n");
    let freezer = Freezer::around(&[held.0.id().unwrap()]).unwrap();
    held.say(&(speech.large)("z")).await;
    held.hear(100).await;
    freezer.freeze().await;
    for number in 0..10 {
        speech.hears(stage.at, &format!("other{number}")).await;
    }
    freezer.thaw();
    let large = held.hear(LARGE - 100 + 1).await;
    assert!(large.trim_end().bytes().all(|letter| letter == b'z'), "somebody else's reply");
    held.say(&(speech.word)("second")).await;
    assert_eq!(held.hear(7).await, "second\n");
    loses_its_backend(&mut held, &freezer, &speech, cut).await;
    speech.hears(stage.at, "after").await;
    assert!(stage.backends.most() <= MOST, "{} were open", stage.backends.most());
}

/// What it held ends while it is frozen.
async fn loses_its_backend(held: &mut Talker, freezer: &Freezer, speech: &Speech<'_>, cut: impl AsyncFnOnce()) {
    freezer.freeze().await;
    cut().await;
    freezer.thaw();
    held.say(&(speech.word)("third")).await;
    let rest = held.rest().await;
    assert!(!rest.contains("other") && !rest.contains('z'), "{rest}");
}

fn narrow(egress: Egress) -> Egress {
    Egress { max: MOST, ..egress }
}

/// Whether there is a freezer: tried.
fn can_freeze() -> bool {
    let sleeps = Command::new("sleep").arg("60").kill_on_drop(true).spawn();
    sleeps.is_ok_and(|sleeps| Freezer::around(&[sleeps.id().unwrap()]).is_some())
}

macro_rules! need_freezer {
    () => {
        if !can_freeze() {
            nearpath_testkit::skip!("needs root and a freezer of control groups")
        }
    };
}

#[test]
fn with_postgresql() {
    on_stage(async {
        need_freezer!();
        let server = need!(Postgres::start_with(&[], &[]).await, "PostgreSQL");
        for mode in [Mode::Transaction, Mode::Session] {
            let stage = postgres::stage(narrow(postgres::as_function(server.at, mode))).await;
            let client = |at| psql(at, "postgres", PASSWORD, &[]);
            let (word, large) = (
                (|word: &str| format!("SELECT '{word}';")) as fn(&str) -> String,
                (|letter: &str| format!("SELECT repeat('{letter}', {LARGE});")) as fn(&str) -> String,
            );
            let cut = async || {
                let sql = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
                server.sql(sql).await;
            };
            freeze_and_thaw(&stage, Speech { client: &client, word, large }, cut).await;
        }
    });
}

#[test]
fn with_mysql() {
    on_stage(async {
        need_freezer!();
        let server = need!(server::mariadb(&[]).await, "mariadbd");
        let stage = mysql::passing(&server, narrow).await;
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
            (|letter: &str| format!("SELECT REPEAT('{letter}', {LARGE});")) as fn(&str) -> String,
        );
        freeze_and_thaw(&stage, Speech { client: &client, word, large }, async || ()).await;
    });
}

#[test]
fn with_redis() {
    on_stage(async {
        need_freezer!();
        let server = need!(server::redis(&[]).await, "redis-server");
        let client = |at: SocketAddr| {
            let mut client = Command::new("redis-cli");
            client.args(["-h", "127.0.0.1", "-p", &at.port().to_string(), "--raw"]);
            client
        };
        let fill = format!(
            "SETRANGE large {} z\nEVAL \"redis.call('SET', 'large', string.rep('z', {LARGE}))\" 0\n",
            LARGE - 1
        );
        run(&mut client(server.at), &fill).await;
        let stage = redis::stage_with(&server, narrow).await;
        let (word, large) = (
            (|word: &str| format!("ECHO {word}")) as fn(&str) -> String,
            (|_: &str| "GET large".to_owned()) as fn(&str) -> String,
        );
        let cut = async || {
            assert!(ran(client(server.at).args(["CLIENT", "KILL", "TYPE", "normal"])).await);
        };
        freeze_and_thaw(&stage, Speech { client: &client, word, large }, cut).await;
    });
}
