//! Drivers of C, Java and Node, unmodified and twice: what they print through the pool is what they print without it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use nearpath_dbproxy::postgres;
use nearpath_types::egress::{Mode, Protocol};
use tokio::process::Command;
use tokio::sync::OnceCell;

use crate::clients::{ran, run};
use crate::mysql;
use crate::postgres::as_function;
use crate::postgres_server::{PASSWORD, Postgres};
use crate::redis::{self, need};
use crate::server;
use crate::stage::{Stage, egress, on_stage};

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/programs").join(name)
}

/// Once without the pool, then twice through the same one.
async fn alike(server: SocketAddr, stage: &Stage, command: impl Fn(SocketAddr) -> Command) {
    let alone = run(&mut command(server), "").await;
    assert!(!alone.is_empty());
    for clients in [1, 2] {
        assert_eq!(run(&mut command(stage.at), "").await, alone, "run {clients}");
    }
}

fn with_address(mut command: Command, at: SocketAddr) -> Command {
    command.arg(at.ip().to_string()).arg(at.port().to_string());
    command
}

#[test]
fn hiredis() {
    on_stage(async {
        let server = need!(server::redis(&[]).await, "redis-server");
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("client");
        let mut cc = Command::new("cc");
        let cc = cc.args(["-O1", "-o"]).arg(&program).arg(source("hiredis.c")).arg("-lhiredis");
        if !ran(cc).await {
            nearpath_testkit::skip!("cc or hiredis is missing: apt-get install gcc libhiredis-dev");
        }
        let stage = redis::stage(&server).await;
        alike(server.at, &stage, |at| with_address(Command::new(&program), at)).await;
        assert_eq!(stage.backends.opened(), 1, "the second run has the first one's connection");
    });
}

/// Where Debian has PostgreSQL's driver for Java.
const JAR: &str = "/usr/share/java/postgresql.jar";

#[test]
fn jdbc() {
    on_stage(async {
        let folder = tempfile::tempdir().unwrap();
        let mut javac = Command::new("javac");
        if !Path::new(JAR).exists() || !ran(javac.arg("-d").arg(folder.path()).arg(source("Jdbc.java"))).await {
            nearpath_testkit::skip!("JDBC is missing: apt-get install default-jdk-headless libpostgresql-jdbc-java");
        }
        let server = need!(Postgres::start_with(&[], &[]).await, "PostgreSQL");
        let java = |at| {
            let mut java = Command::new("java");
            java.args(["-XX:TieredStopAtLevel=1", "-cp"]).arg(format!("{}:{JAR}", folder.path().display())).arg("Jdbc");
            let mut java = with_address(java, at);
            java.arg(PASSWORD);
            java
        };
        for mode in [Mode::Transaction, Mode::Session] {
            let stage = Stage::open(as_function(server.at, mode), &[("password", PASSWORD)], postgres::serve).await;
            alike(server.at, &stage, java).await;
            assert!(stage.backends.opened() <= 2, "{mode:?}: six clients, {} opened", stage.backends.opened());
        }
    });
}

/// A folder with Node's drivers; `None`: no Node, or no package registry.
async fn node() -> Option<&'static Path> {
    static FOLDER: OnceCell<Option<PathBuf>> = OnceCell::const_new();
    let made = async || {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("node-clients");
        let _lock = nearpath_testkit::lock_shared_folder(&folder);
        std::fs::create_dir_all(&folder).ok()?;
        let there = async || {
            ran(Command::new("node").args(["-e", "require('pg'); require('mysql2')"]).current_dir(&folder)).await
        };
        if there().await {
            return Some(folder);
        }
        let mut npm = Command::new("npm");
        npm.args([
            "install",
            "--no-audit",
            "--no-fund",
            "--ignore-scripts",
            "--fetch-retries=1",
            "pg@8.13.1",
            "mysql2@3.11.5",
        ]);
        ran(npm.current_dir(&folder)).await.then_some(folder)
    };
    FOLDER.get_or_init(made).await.as_deref()
}

fn driver(folder: &Path, which: &str, at: SocketAddr, password: &str) -> Command {
    let mut node = Command::new("node");
    node.arg(source("drivers.js")).arg(which).env("NODE_PATH", folder.join("node_modules"));
    let mut node = with_address(node, at);
    node.arg(password);
    node
}

#[test]
fn nodes_drivers() {
    on_stage(async {
        let folder = need!(node().await, "Node with pg and mysql2");
        let server = need!(Postgres::start_with(&[], &[]).await, "PostgreSQL");
        for mode in [Mode::Transaction, Mode::Session] {
            let stage = Stage::open(as_function(server.at, mode), &[("password", PASSWORD)], postgres::serve).await;
            alike(server.at, &stage, |at| driver(folder, "pg", at, PASSWORD)).await;
        }
        let server = need!(server::mariadb(&[]).await, "mariadbd");
        let stage = mysql::passing(&server, |it| it).await;
        assert_eq!(egress(Protocol::Mysql, server.at).protocol, Protocol::Mysql);
        alike(server.at, &stage, |at| driver(folder, "mysql", at, "pw")).await;
    });
}
