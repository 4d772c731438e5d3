//! Servers that restart or are full, clients that cancel, and a limit that holds.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use nearpath_dbproxy::Adapter;
use nearpath_dbproxy::postgres::PostgresAdapter;
use nearpath_types::egress::{EgressProtocol, EgressSpec, PoolingMode};
use rustix::process::Signal;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};

use crate::fixture::{AdapterFixture, default_egress, node_login, run_local};
use crate::postgres::{as_function, on_postgres, open_fixture};
use crate::postgres_raw::RawClient;
use crate::postgres_server::{PASSWORD, PostgresServer, psql_command};
use crate::scripted_server::ScriptedServer;

#[test]
fn a_server_that_restarts_between_two_statements_is_not_noticed() {
    on_postgres!(&[], |server| {
        let fixture = open_fixture(as_function(server.at, PoolingMode::Transaction)).await;
        let mut client = RawClient::new(fixture.at).await;
        for how in [Signal::INT, Signal::QUIT] {
            assert_eq!(client.query("SELECT 1").await.unwrap(), ["1"]);
            server.stop(how).await;
            server.restart().await;
            assert_eq!(client.query("SELECT 2").await.unwrap(), ["2"], "{how:?}");
            let mut other = RawClient::new(fixture.at).await;
            assert_eq!(other.query("SELECT 3").await.unwrap(), ["3"], "{how:?}");
        }
    });
}

/// Forwards to a server, but first answers some logins as a server does that is starting up.
async fn refuse_then_forward(server: SocketAddr, refusals: u32) -> SocketAddr {
    const STARTING_UP: &[u8] =
        b"E\0\0\0\x37SFATAL\0C57P03\0Mthe database system is starting up\0\0";
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::task::spawn_local(async move {
        for accepted in 0.. {
            let (mut client, _) = listener.accept().await.unwrap();
            tokio::task::spawn_local(async move {
                if accepted < refusals {
                    client.read_buf(&mut Vec::with_capacity(1024)).await?;
                    return client.write_all(STARTING_UP).await;
                }
                let mut backend = TcpStream::connect(server).await?;
                copy_bidirectional(&mut client, &mut backend)
                    .await
                    .map(|_| ())
            });
        }
    });
    addr
}

#[test]
fn a_client_waits_for_a_server_that_is_starting_up() {
    on_postgres!(&[], |server| {
        let starting = refuse_then_forward(server.at, 3).await;
        let fixture = open_fixture(as_function(starting, PoolingMode::Transaction)).await;
        let mut client = RawClient::new(fixture.at).await;
        assert_eq!(client.query("SELECT 1").await.unwrap(), ["1"]);
        // After `wait`, the client gets the server's own words.
        let never = refuse_then_forward(server.at, u32::MAX).await;
        let short_wait = EgressSpec {
            wait: Duration::from_millis(300),
            ..as_function(never, PoolingMode::Transaction)
        };
        let fixture = open_fixture(short_wait).await;
        let received = RawClient::log_in(fixture.at, &[]).await.err().unwrap();
        assert!(received.contains("57P03"), "{received}");
    });
}

#[test]
fn a_backend_that_ends_within_a_transaction_reports_why() {
    on_postgres!(&[], |server| {
        for mode in [PoolingMode::Transaction, PoolingMode::Session] {
            let fixture = open_fixture(as_function(server.at, mode)).await;
            let mut client = RawClient::new(fixture.at).await;
            client.query("BEGIN; SELECT 1").await.unwrap();
            server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE state LIKE 'idle in%'").await;
            let received = client.query("SELECT 1").await.unwrap_err();
            assert!(
                received.starts_with("FATAL 57P01") || received == "closed",
                "{mode:?}: {received}"
            );
            let mut next = RawClient::new(fixture.at).await;
            assert_eq!(next.query("SELECT 1").await.unwrap(), ["1"], "{mode:?}");
        }
    });
}

#[test]
fn a_server_that_ends_idle_sessions_is_not_noticed() {
    on_postgres!(&["idle_session_timeout=50ms"], |server| {
        let fixture = open_fixture(as_function(server.at, PoolingMode::Transaction)).await;
        let mut client = RawClient::new(fixture.at).await;
        for _ in 0..5 {
            assert_eq!(client.query("SELECT 1").await.unwrap(), ["1"]);
            let ended = async || server.session_count().await == 0;
            nearpath_testkit::eventually("the idle session ends", ended).await;
        }
        assert!(fixture.backends.opened() >= 5);
    });
}

#[test]
fn the_error_of_a_full_server_reaches_the_client() {
    on_postgres!(
        &[
            "max_connections=5",
            "superuser_reserved_connections=3",
            "max_wal_senders=0"
        ],
        |server| {
            server.sql("CREATE ROLE plain LOGIN").await;
            server.set_auth_method("trust").await;
            let mut egress = as_function(server.at, PoolingMode::Session);
            egress.login.as_mut().unwrap().user = "plain".into();
            let fixture = open_fixture(egress).await;
            let (mut one, mut two) = (
                RawClient::new(fixture.at).await,
                RawClient::new(fixture.at).await,
            );
            one.query("SELECT 1").await.unwrap();
            two.query("SELECT 1").await.unwrap();
            let mut three = RawClient::new(fixture.at).await;
            let received = three.query("SELECT 1").await.unwrap_err();
            assert!(received.starts_with("FATAL 53300"), "{received}");
            one.leave(true).await;
            fixture.wait_served(2).await;
            let mut four = RawClient::new(fixture.at).await;
            assert_eq!(four.query("SELECT 4").await.unwrap(), ["4"]);
        }
    );
}

#[test]
fn max_holds_and_waiting_times_out() {
    on_postgres!(&[], |server| {
        server.sql("CREATE ROLE plain LOGIN").await;
        server.set_auth_method("trust").await;
        let mut egress = as_function(server.at, PoolingMode::Transaction);
        egress.login.as_mut().unwrap().user = "plain".into();
        let fixture = open_fixture(EgressSpec {
            max: 3,
            wait: Duration::from_secs(60),
            ..egress.clone()
        })
        .await;
        let clients: Vec<_> = (0..30)
            .map(|n| {
                let at = fixture.at;
                tokio::task::spawn_local(async move {
                    let mut client = RawClient::new(at).await;
                    for m in 0..5 {
                        let sql = format!(
                            "BEGIN; SELECT pg_sleep(0.002); SELECT {n} * 100 + {m}; COMMIT"
                        );
                        assert_eq!(
                            client.query(&sql).await.unwrap()[1],
                            (n * 100 + m).to_string()
                        );
                    }
                })
            })
            .collect();
        while clients.iter().any(|client| !client.is_finished()) {
            assert!(server.session_count().await <= 3);
        }
        for client in clients {
            client.await.unwrap();
        }
        assert!(fixture.backends.max_open() <= 3);
        let fixture = crate::postgres::open_fixture(EgressSpec {
            max: 1,
            wait: Duration::from_secs(3),
            ..egress
        })
        .await;
        let (mut one, mut two) = (
            RawClient::new(fixture.at).await,
            RawClient::new(fixture.at).await,
        );
        one.query("BEGIN; SELECT 1").await.unwrap();
        let received = two.query("SELECT 1").await.unwrap_err();
        assert!(
            received.starts_with("FATAL 53300") && received.contains("`max`"),
            "{received}"
        );
        one.query("COMMIT").await.unwrap();
        assert_eq!(
            RawClient::new(fixture.at)
                .await
                .query("SELECT 1")
                .await
                .unwrap(),
            ["1"]
        );
    });
}

#[test]
fn users_of_one_function_take_turns_below_max() {
    on_postgres!(&[], |server| {
        server.sql("CREATE ROLE other SUPERUSER LOGIN").await;
        server.set_auth_method("trust").await;
        let egress = EgressSpec {
            max: 1,
            ..crate::fixture::default_egress(
                nearpath_types::egress::EgressProtocol::Postgres,
                server.at,
            )
        };
        let fixture = open_fixture(egress).await;
        for turn in 0..6 {
            let database = if turn % 2 == 0 {
                "postgres"
            } else {
                "template1"
            };
            let mut client =
                RawClient::log_in(fixture.at, &[("user", "other"), ("database", database)])
                    .await
                    .unwrap();
            assert_eq!(
                client.query("SELECT current_database()").await.unwrap(),
                [database]
            );
            client.leave(true).await;
        }
        assert_eq!(fixture.backends.max_open(), 1);
    });
}

#[test]
fn an_unreachable_server_is_named() {
    on_postgres!(&[], |server| {
        server.stop(Signal::INT).await;
        let fixture = open_fixture(as_function(server.at, PoolingMode::Transaction)).await;
        let received = RawClient::log_in(fixture.at, &[]).await.err().unwrap();
        assert!(
            received.starts_with("FATAL 08006") && received.contains(&server.at.port().to_string()),
            "{received}"
        );
    });
}

#[test]
fn a_cancel_reaches_its_own_client_only() {
    on_postgres!(&[], |server| {
        let fixture = open_fixture(EgressSpec {
            max: 1,
            ..as_function(server.at, PoolingMode::Transaction)
        })
        .await;
        let mut one = RawClient::new(fixture.at).await;
        let mut two = RawClient::new(fixture.at).await;
        // Cancelled while it runs.
        one.send(|out| {
            postgres_protocol::message::frontend::query("SELECT pg_sleep(60)", out).unwrap()
        })
        .await;
        nearpath_testkit::eventually("it runs", async || {
            server
                .sql("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'")
                .await
                == "1"
        })
        .await;
        RawClient::cancel(fixture.at, (two.key.0, two.key.1)).await;
        RawClient::cancel(fixture.at, (one.key.0, one.key.1 ^ 1)).await;
        RawClient::cancel(fixture.at, one.key).await;
        assert!(
            one.read_rows()
                .await
                .unwrap_err()
                .starts_with("ERROR 57014")
        );
        // Cancelled at any moment, while another client has the same backend just before and just
        // after.
        for _ in 0..200 {
            let (at, key) = (fixture.at, one.key);
            let cancel = tokio::task::spawn_local(RawClient::cancel(at, key));
            match one.query("SELECT 1").await {
                Ok(rows) => assert_eq!(rows, ["1"]),
                Err(error) => assert!(error.starts_with("ERROR 57014"), "{error}"),
            }
            assert_eq!(two.query("SELECT 2").await.unwrap(), ["2"]);
            cancel.await.unwrap();
        }
        assert_eq!(fixture.backends.max_open(), 1);
    });
}

#[test]
fn a_half_closed_client_still_gets_the_reply() {
    on_postgres!(&[], |server| {
        for mode in [PoolingMode::Transaction, PoolingMode::Session] {
            let fixture = open_fixture(as_function(server.at, mode)).await;
            let mut client = RawClient::new(fixture.at).await;
            let sql = "SELECT repeat('x', 100000) FROM generate_series(1, 20)";
            client
                .send(|out| postgres_protocol::message::frontend::query(sql, out).unwrap())
                .await;
            client.stream.shutdown().await.unwrap();
            assert_eq!(client.read_rows().await.unwrap().len(), 20, "{mode:?}");
            assert!(client.read_message().await.is_none());
        }
    });
}

/// The egress proxy drops a client's future when its instance has ended, in the middle of any step.
#[test]
fn an_ended_instance_leaves_nothing_open() {
    on_postgres!(&[], |server| {
        server.sql("CREATE TABLE ledger (a int)").await;
        let ended = Rc::new(tokio::sync::Notify::new());
        let end = ended.clone();
        let until_it_ends = move |client, context| {
            let end = end.clone();
            async move {
                tokio::select! {
                    served = PostgresAdapter.serve(client, context) => served,
                    () = end.notified() => Ok(()),
                }
            }
        };
        let egress = EgressSpec {
            max: 1,
            ..as_function(server.at, PoolingMode::Transaction)
        };
        let fixture =
            AdapterFixture::open_with(egress, &[("password", PASSWORD)], until_it_ends).await;
        for orders in [
            "BEGIN; INSERT INTO ledger VALUES (1)",
            "SELECT pg_advisory_lock(1)",
            "SELECT 1",
        ] {
            let mut client = RawClient::new(fixture.at).await;
            client.query(orders).await.unwrap();
            ended.notify_waiters();
            assert!(client.read_message().await.is_none(), "it hears no more");
            let mut next = RawClient::new(fixture.at).await;
            assert_eq!(
                next.query("SELECT count(*) FROM ledger").await.unwrap(),
                ["0"]
            );
            let locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'";
            assert_eq!(next.query(locks).await.unwrap(), ["0"]);
            next.leave(true).await;
        }
        assert_eq!(
            fixture.backends.opened(),
            1,
            "each time it was cleaned, and served again"
        );
    });
}

/// Sends a startup message for the user `u`; returns all that comes back.
async fn answer_to_startup(at: SocketAddr) -> String {
    let mut client = TcpStream::connect(at).await.unwrap();
    let startup = b"\0\0\0\x10\0\x03\0\0user\0u\0\0";
    client.write_all(startup).await.unwrap();
    let mut answer = Vec::new();
    // The connection may end with a reset.
    let _ = client.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn a_server_of_another_protocol_is_named_with_its_answer() {
    run_local(async {
        let greeting = b"J\0\0\0\n8.0.36\0";
        let server = ScriptedServer::start(async |mut connection| {
            connection.stream.write_all(greeting).await.ok()?;
            // Waits for the client to leave.
            connection.read_head().await.map(drop)
        })
        .await;
        for login in [None, node_login("u")] {
            let mut egress = default_egress(EgressProtocol::Postgres, server.at);
            egress.login = login;
            let fixture = open_fixture(egress).await;
            let answer = answer_to_startup(fixture.at).await;
            assert!(
                answer.contains("does not speak PostgreSQL") && answer.contains("8.0.36"),
                "{answer}"
            );
        }
    });
}

#[test]
fn a_refused_login_of_the_node_is_told_as_such_and_logged() {
    on_postgres!(&[], |server| {
        let egress = as_function(server.at, PoolingMode::Transaction);
        let fixture = AdapterFixture::open(egress, &[("password", "outdated")]).await;
        let received = RawClient::log_in(fixture.at, &[]).await.err().unwrap();
        assert!(
            received.starts_with("FATAL 28P01")
                && received.contains("the login of nearpath as \"postgres\"")
                && received.contains("egress"),
            "{received}"
        );
        let log = fixture.log.borrow();
        assert!(
            matches!(log.as_slice(), [line] if line.contains("password authentication failed")),
            "{log:?}"
        );
    });
}

#[test]
fn a_client_with_its_own_login_hears_of_the_full_ceiling() {
    on_postgres!(&[], |server| {
        let fixture = open_fixture(EgressSpec {
            login: None,
            max: 1,
            // Also the time for the first client's login.
            wait: Duration::from_secs(2),
            ..as_function(server.at, PoolingMode::Transaction)
        })
        .await;
        let psql = || {
            psql_command(
                fixture.at,
                "postgres",
                PASSWORD,
                &["-c", "SELECT pg_sleep(60)"],
            )
        };
        let mut first = psql().kill_on_drop(true).spawn().unwrap();
        nearpath_testkit::eventually("the first client has its session", async || {
            server.session_count().await == 1
        })
        .await;
        let second = psql().output().await.unwrap();
        let text = String::from_utf8_lossy(&second.stderr);
        assert!(text.contains("`max`"), "{text}");
        first.kill().await.unwrap();
    });
}
