//! Drivers of C, Java and Node, unmodified, twice each: their output through the pool equals that
//! without it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use nearpath_types::egress::{EgressProtocol, PoolingMode};
use tokio::process::Command;
use tokio::sync::OnceCell;

use crate::clients::{run_program, succeeds};
use crate::fixture::{AdapterFixture, default_egress, run_local};
use crate::mysql;
use crate::postgres::as_function;
use crate::postgres_server::{PASSWORD, PostgresServer};
use crate::redis::{self, need};
use crate::server;

fn source_path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/it/programs")
        .join(name)
}

/// Runs a program once without the pool, then twice through it.
async fn assert_same_output(
    server: SocketAddr,
    fixture: &AdapterFixture,
    command: impl Fn(SocketAddr) -> Command,
) {
    let alone = run_program(&mut command(server), "").await;
    assert!(!alone.is_empty());
    for clients in [1, 2] {
        assert_eq!(
            run_program(&mut command(fixture.at), "").await,
            alone,
            "run {clients}"
        );
    }
}

fn with_address(mut command: Command, at: SocketAddr) -> Command {
    command.arg(at.ip().to_string()).arg(at.port().to_string());
    command
}

#[test]
fn hiredis_runs_unmodified_and_twice() {
    run_local(async {
        let server = need!(server::start_redis(&[]).await, "redis-server");
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("client");
        let mut cc = Command::new("cc");
        let cc = cc
            .args(["-O1", "-o"])
            .arg(&program)
            .arg(source_path("hiredis.c"))
            .arg("-lhiredis");
        if !succeeds(cc).await {
            nearpath_testkit::skip!("cc or hiredis is missing: apt-get install gcc libhiredis-dev");
        }
        let fixture = redis::open_fixture(&server).await;
        assert_same_output(server.at, &fixture, |at| {
            with_address(Command::new(&program), at)
        })
        .await;
        assert_eq!(
            fixture.backends.opened(),
            1,
            "the second run has the first one's connection"
        );
    });
}

/// Path of PostgreSQL's JDBC driver in Debian.
const JDBC_JAR: &str = "/usr/share/java/postgresql.jar";

#[test]
fn jdbc_runs_unmodified_and_twice() {
    run_local(async {
        let folder = tempfile::tempdir().unwrap();
        let mut javac = Command::new("javac");
        if !Path::new(JDBC_JAR).exists()
            || !succeeds(
                javac
                    .arg("-d")
                    .arg(folder.path())
                    .arg(source_path("Jdbc.java")),
            )
            .await
        {
            nearpath_testkit::skip!(
                "JDBC is missing: apt-get install default-jdk-headless libpostgresql-jdbc-java"
            );
        }
        let server = need!(PostgresServer::start_with(&[], &[]).await, "PostgreSQL");
        let java = |at| {
            let mut java = Command::new("java");
            java.args(["-XX:TieredStopAtLevel=1", "-cp"])
                .arg(format!("{}:{JDBC_JAR}", folder.path().display()))
                .arg("Jdbc");
            let mut java = with_address(java, at);
            java.arg(PASSWORD);
            java
        };
        for mode in [PoolingMode::Transaction, PoolingMode::Session] {
            let fixture =
                AdapterFixture::open(as_function(server.at, mode), &[("password", PASSWORD)]).await;
            assert_same_output(server.at, &fixture, java).await;
            // A client that connects before the one before it has ended opens another connection.
            assert!(
                fixture.backends.opened() < 6,
                "{mode:?}: six clients, {} opened",
                fixture.backends.opened()
            );
        }
    });
}

/// Returns a folder with Node's drivers. `None`: Node or the package registry is missing.
async fn node_modules() -> Option<&'static Path> {
    static FOLDER: OnceCell<Option<PathBuf>> = OnceCell::const_new();
    let made = async || {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("node-clients");
        let _lock = nearpath_testkit::lock_shared_folder(&folder);
        std::fs::create_dir_all(&folder).ok()?;
        let there = async || {
            succeeds(
                Command::new("node")
                    .args(["-e", "require('pg'); require('mysql2')"])
                    .current_dir(&folder),
            )
            .await
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
        succeeds(npm.current_dir(&folder)).await.then_some(folder)
    };
    FOLDER.get_or_init(made).await.as_deref()
}

fn driver_command(folder: &Path, which: &str, at: SocketAddr, password: &str) -> Command {
    let mut node = Command::new("node");
    node.arg(source_path("drivers.js"))
        .arg(which)
        .env("NODE_PATH", folder.join("node_modules"));
    let mut node = with_address(node, at);
    node.arg(password);
    node
}

#[test]
fn node_drivers_run_unmodified_and_twice() {
    run_local(async {
        let folder = need!(node_modules().await, "Node with pg and mysql2");
        let server = need!(PostgresServer::start_with(&[], &[]).await, "PostgreSQL");
        for mode in [PoolingMode::Transaction, PoolingMode::Session] {
            let fixture =
                AdapterFixture::open(as_function(server.at, mode), &[("password", PASSWORD)]).await;
            assert_same_output(server.at, &fixture, |at| {
                driver_command(folder, "pg", at, PASSWORD)
            })
            .await;
        }
        let server = need!(server::start_mariadb(&[]).await, "mariadbd");
        let fixture = mysql::open_with_client_login(&server, |it| it).await;
        assert_eq!(
            default_egress(EgressProtocol::Mysql, server.at).protocol,
            EgressProtocol::Mysql
        );
        assert_same_output(server.at, &fixture, |at| {
            driver_command(folder, "mysql", at, "pw")
        })
        .await;
    });
}
