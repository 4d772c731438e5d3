//! PostgreSQL's clients, unmodified, each twice against the same pool.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use nearpath_types::egress::{EgressProtocol, EgressSpec, PoolingMode};
use tokio::process::Command;
use tokio::sync::OnceCell;

use crate::clients;
use crate::fixture::{AdapterFixture, default_egress, node_login, run_local};
use crate::postgres_server::{PASSWORD, PostgresServer, psql_command};

/// The egress of a function as which the node logs in.
pub(crate) fn as_function(at: SocketAddr, mode: PoolingMode) -> EgressSpec {
    EgressSpec {
        mode,
        login: node_login("postgres"),
        ..default_egress(EgressProtocol::Postgres, at)
    }
}

pub(crate) async fn open_fixture(egress: EgressSpec) -> AdapterFixture {
    AdapterFixture::open(egress, &[("password", PASSWORD)]).await
}

/// Runs the test on a server, or skips it without one.
macro_rules! on_postgres {
    ($settings:expr, |$server:ident| $test:block) => {
        crate::postgres::on_postgres_with!($settings, &[], |$server| $test)
    };
}
pub(crate) use on_postgres;

/// Does the same on a server with additional files.
macro_rules! on_postgres_with {
    ($settings:expr, $files:expr, |$server:ident| $test:block) => {
        run_local(async {
            #[allow(unused_mut)]
            let Some(mut $server) = PostgresServer::start_with($settings, $files).await else {
                nearpath_testkit::skip!("PostgreSQL is missing: apt-get install postgresql")
            };
            $test
        })
    };
}
pub(crate) use on_postgres_with;

#[test]
fn psql_runs_in_both_modes() {
    on_postgres!(&[], |server| {
        for mode in [PoolingMode::Transaction, PoolingMode::Session] {
            let fixture = open_fixture(as_function(server.at, mode)).await;
            for run in 1..=2 {
                let script = "BEGIN;\nCREATE TABLE a (b int, c text);\nCOPY a FROM stdin;\n1\tx\n2\ty\n\\.\nSELECT count(*) FROM a;\n\
                              \\copy a to stdout\nROLLBACK;\nSHOW application_name;\nSELECT 1/1 \\gdesc\n";
                let received = clients::run_program(
                    &mut psql_command(fixture.at, "anybody", "wrong", &[]),
                    script,
                )
                .await;
                assert_eq!(
                    received, "2\n1\tx\n2\ty\npsql\n?column?|integer\n",
                    "{mode:?}, run {run}"
                );
                fixture.wait_served(run).await;
            }
            // A transaction that created an object has its backend cleaned, and another one serves
            // the next statement.
            assert!(fixture.backends.opened() <= 2, "{mode:?}");
        }
    });
}

/// Returns Python with the common drivers. `None`: Python or the package index is missing.
pub(crate) async fn python_with_drivers() -> Option<&'static Path> {
    static PYTHON: OnceCell<Option<PathBuf>> = OnceCell::const_new();
    const PACKAGES: &[&str] = &[
        "psycopg[binary]==3.2.10",
        "asyncpg==0.30.0",
        "pg8000==1.31.5",
    ];
    let made = async || {
        let venv = Path::new(env!("CARGO_TARGET_TMPDIR")).join("postgres-clients");
        let _lock = nearpath_testkit::lock_shared_folder(&venv);
        let python = venv.join("bin/python");
        let there = clients::succeeds(
            Command::new(&python).args(["-c", "import psycopg, asyncpg, pg8000"]),
        )
        .await;
        let made = there
            || clients::succeeds(Command::new("python3").arg("-m").arg("venv").arg(&venv)).await
                && clients::succeeds(
                    Command::new(&python)
                        .args([
                            "-m",
                            "pip",
                            "install",
                            "-q",
                            "--retries",
                            "1",
                            "--timeout",
                            "20",
                        ])
                        .args(PACKAGES),
                )
                .await;
        made.then_some(python)
    };
    PYTHON.get_or_init(made).await.as_deref()
}

/// Runs a script twice in each mode.
async fn run_twice(server: &PostgresServer, script: &str) {
    let Some(python) = python_with_drivers().await else {
        nearpath_testkit::skip!("psycopg, asyncpg and pg8000 cannot be installed")
    };
    for mode in [PoolingMode::Transaction, PoolingMode::Session] {
        let fixture = open_fixture(as_function(server.at, mode)).await;
        for _ in 1..=2 {
            assert_eq!(
                clients::run_script(python, script, fixture.at).await,
                "done\n",
                "{mode:?}"
            );
        }
        assert!(fixture.backends.max_open() <= 20);
    }
}

#[test]
fn psycopg_runs_in_both_modes() {
    on_postgres!(&[], |server| {
        run_twice(&server, include_str!("postgres_clients/psycopg.py")).await
    });
}

#[test]
fn async_drivers_run_in_both_modes() {
    on_postgres!(&[], |server| {
        run_twice(&server, include_str!("postgres_clients/async_drivers.py")).await
    });
}

#[test]
fn a_driver_in_pure_python_runs_in_both_modes() {
    on_postgres!(&[], |server| {
        run_twice(&server, include_str!("postgres_clients/pure.py")).await
    });
}

#[test]
fn go_drivers_run_in_both_modes() {
    on_postgres!(&[], |server| {
        let binary = Path::new(env!("CARGO_TARGET_TMPDIR")).join("postgres-clients-go");
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/postgres_clients/go");
        let mut build = Command::new("go");
        build
            .args(["build", "-o"])
            .arg(&binary)
            .arg(".")
            .current_dir(folder)
            .env("CGO_ENABLED", "0");
        if !clients::succeeds(&mut build).await {
            nearpath_testkit::skip!("Go, or its modules lib/pq and pgx, cannot be had");
        }
        for mode in [PoolingMode::Transaction, PoolingMode::Session] {
            let fixture = open_fixture(as_function(server.at, mode)).await;
            for _ in 1..=2 {
                let mut command = Command::new(&binary);
                command
                    .arg(fixture.at.ip().to_string())
                    .arg(fixture.at.port().to_string());
                assert_eq!(
                    clients::run_program(&mut command, "").await,
                    "done\n",
                    "{mode:?}"
                );
            }
        }
    });
}

/// How a function's own password passes through: methods, and the connections that two successive
/// clients open.
#[test]
fn a_client_password_is_checked_by_the_server() {
    on_postgres!(&[], |server| {
        server.sql("SET password_encryption = 'md5'; CREATE ROLE old LOGIN PASSWORD 'right'; SET password_encryption = 'scram-sha-256'; CREATE ROLE new LOGIN PASSWORD 'right'").await;
        for (method, user, opened) in [
            ("trust", "new", 1),
            ("password", "new", 1),
            ("md5", "old", 1),
            ("scram-sha-256", "new", 2),
        ] {
            server.set_auth_method(method).await;
            let fixture = open_fixture(default_egress(EgressProtocol::Postgres, server.at)).await;
            for client in 1..=2 {
                let who = clients::run_program(
                    &mut psql_command(fixture.at, user, "right", &["-c", "SELECT current_user"]),
                    "",
                )
                .await;
                assert_eq!(who.trim(), user, "{method}");
                fixture.wait_served(client).await;
                if opened == 1 {
                    // A client that comes while the previous session is being cleaned needs another
                    // one.
                    let cleaned = async || fixture.ledger.resets.get() >= client as u64;
                    nearpath_testkit::eventually("the session can serve again", cleaned).await;
                }
            }
            assert_eq!(fixture.backends.opened(), opened, "{method}");
            if method != "trust" {
                for _ in 1..=2 {
                    let wrong = clients::program_output(
                        &mut psql_command(fixture.at, user, "wrong", &["-c", "SELECT 1"]),
                        "",
                    )
                    .await;
                    let received = String::from_utf8_lossy(&wrong.stderr);
                    assert!(
                        !wrong.status.success()
                            && received.contains("password authentication failed"),
                        "{method}: {received}"
                    );
                }
                let who = clients::run_program(
                    &mut psql_command(fixture.at, user, "right", &["-c", "SELECT current_user"]),
                    "",
                )
                .await;
                assert_eq!(who.trim(), user, "{method}");
            }
        }
    });
}
