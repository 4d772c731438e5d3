//! State that follows a client from one backend to the next, and state that pins it to one.

use bytes::BytesMut;
use nearpath_types::egress::{EgressSpec, PoolingMode};
use postgres_protocol::IsNull;
use postgres_protocol::message::frontend;

use crate::fixture::{AdapterFixture, run_local};
use crate::postgres::{as_function, on_postgres, open_fixture};
use crate::postgres_raw::RawClient;
use crate::postgres_server::PostgresServer;

const BACKEND_PID_QUERY: &str = "SELECT pg_backend_pid()";

async fn open_two_backends(server: &PostgresServer) -> AdapterFixture {
    open_fixture(EgressSpec {
        max: 2,
        ..as_function(server.at, PoolingMode::Transaction)
    })
    .await
}

/// Leaves `client` only a backend that it did not have before.
async fn force_other_backend(client: &mut RawClient, fixture: &AdapterFixture) -> RawClient {
    let before = client.query(BACKEND_PID_QUERY).await.unwrap();
    let mut other = RawClient::new(fixture.at).await;
    other.query("BEGIN").await.unwrap();
    if other.query(BACKEND_PID_QUERY).await.unwrap() != before {
        // The new client took the other backend: they change roles.
        let mut third = RawClient::new(fixture.at).await;
        third.query("BEGIN").await.unwrap();
        assert_eq!(third.query(BACKEND_PID_QUERY).await.unwrap(), before);
        other = third;
    }
    assert_ne!(client.query(BACKEND_PID_QUERY).await.unwrap(), before);
    other
}

fn bind_and_execute(name: &str, out: &mut BytesMut) {
    let none = std::iter::empty::<i16>;
    let bound = frontend::bind(
        "",
        name,
        none(),
        std::iter::empty::<i32>(),
        |_, _| Ok(IsNull::Yes),
        none(),
        out,
    );
    assert!(bound.is_ok());
    frontend::execute("", 0, out).unwrap();
    frontend::sync(out);
}

#[test]
fn settings_and_statements_follow_their_client() {
    on_postgres!(&[], |server| {
        let fixture = open_two_backends(&server).await;
        let mut client = RawClient::new(fixture.at).await;
        client
            .query("SET TimeZone = 'Asia/Tokyo'; SET application_name = 'it''s \\ me'")
            .await
            .unwrap();
        client
            .send(|out| frontend::parse("mine", "SELECT 'by name'", [], out).unwrap())
            .await;
        client
            .send(|out| frontend::parse("", "SELECT 'without'", [], out).unwrap())
            .await;
        client.send(frontend::sync).await;
        client.read_rows().await.unwrap();
        client.send(|out| bind_and_execute("", out)).await;
        assert_eq!(client.read_rows().await.unwrap(), ["without"]);
        let _other = force_other_backend(&mut client, &fixture).await;
        assert_eq!(client.query("SHOW TimeZone").await.unwrap(), ["Asia/Tokyo"]);
        assert_eq!(
            client.query("SHOW application_name").await.unwrap(),
            ["it's \\ me"]
        );
        client.send(|out| bind_and_execute("mine", out)).await;
        assert_eq!(client.read_rows().await.unwrap(), ["by name"]);
        assert!(fixture.pin_reasons().is_empty());
    });
}

/// lib/pq prepares an unnamed statement, waits, and binds afterwards. In between another client may
/// have had the backend.
#[test]
fn an_unnamed_statement_belongs_to_its_client() {
    on_postgres!(&[], |server| {
        let fixture = open_fixture(EgressSpec {
            max: 1,
            ..as_function(server.at, PoolingMode::Transaction)
        })
        .await;
        let mut clients = [
            RawClient::new(fixture.at).await,
            RawClient::new(fixture.at).await,
        ];
        for (n, client) in clients.iter_mut().enumerate() {
            client
                .send(|out| frontend::parse("", &format!("SELECT 'of {n}'"), [], out).unwrap())
                .await;
            client.send(frontend::sync).await;
            client.read_rows().await.unwrap();
        }
        for (n, client) in clients.iter_mut().enumerate() {
            client.send(|out| bind_and_execute("", out)).await;
            assert_eq!(client.read_rows().await.unwrap(), [format!("of {n}")]);
        }
        let mut third = RawClient::new(fixture.at).await;
        third.send(|out| bind_and_execute("", out)).await;
        assert!(
            third.read_rows().await.unwrap_err().contains("26000"),
            "it has prepared nothing"
        );
    });
}

#[test]
fn a_text_is_analyzed_when_it_is_prepared() {
    on_postgres!(&[], |server| {
        let fixture = open_fixture(EgressSpec {
            max: 1,
            ..as_function(server.at, PoolingMode::Transaction)
        })
        .await;
        server
            .sql("CREATE TABLE t (a text); INSERT INTO t VALUES ('a')")
            .await;
        for column in ["b", "c"] {
            let mut client = RawClient::new(fixture.at).await;
            client
                .send(|out| frontend::parse("all", "SELECT * FROM t", [], out).unwrap())
                .await;
            client.send(|out| bind_and_execute("all", out)).await;
            assert_eq!(client.read_rows().await.unwrap(), ["a"]);
            server
                .sql(&format!("ALTER TABLE t ADD {column} text"))
                .await;
            client.send(|out| bind_and_execute("all", out)).await;
            assert!(
                client.read_rows().await.unwrap_err().contains("0A000"),
                "as without a pool"
            );
            client.leave(true).await;
        }
    });
}

#[test]
fn more_statements_than_a_backend_keeps_are_prepared_again() {
    on_postgres!(&[], |server| {
        let fixture = open_fixture(EgressSpec {
            max: 1,
            ..as_function(server.at, PoolingMode::Transaction)
        })
        .await;
        let mut client = RawClient::new(fixture.at).await;
        for n in 0..300 {
            client
                .send(|out| {
                    frontend::parse(&format!("s{n}"), &format!("SELECT 'n{n}'"), [], out).unwrap()
                })
                .await;
        }
        client.send(frontend::sync).await;
        client.read_rows().await.unwrap();
        for n in [0, 299, 100, 0] {
            client
                .send(|out| bind_and_execute(&format!("s{n}"), out))
                .await;
            assert_eq!(client.read_rows().await.unwrap(), [format!("n{n}")]);
        }
        let kept: u32 = client
            .query("SELECT count(*) FROM pg_prepared_statements")
            .await
            .unwrap()[0]
            .parse()
            .unwrap();
        assert!(kept <= 201, "{kept}");
    });
}

#[test]
fn pinned_clients_keep_their_backend_with_the_reason() {
    on_postgres!(&[], |server| {
        for (sql, why, proof, expected) in [
            (
                "LISTEN news",
                "LISTEN",
                "SELECT count(*) FROM pg_listening_channels()",
                "1",
            ),
            ("SET work_mem = '77MB'", "SET", "SHOW work_mem", "77MB"),
            (
                "CREATE TEMP TABLE t (a int)",
                "temporary table",
                "SELECT count(*) FROM t",
                "0",
            ),
            (
                "SELECT pg_advisory_lock(7)",
                "advisory lock",
                "SELECT pg_advisory_unlock(7)",
                "t",
            ),
            ("PREPARE p AS SELECT 'p'", "PREPARE", "EXECUTE p", "p"),
            (
                "DECLARE c CURSOR WITH HOLD FOR SELECT 'c'",
                "cursor WITH HOLD",
                "FETCH 1 FROM c",
                "c",
            ),
            (
                "DO $$ BEGIN PERFORM set_config('work_mem', '78MB', false); END $$",
                "DO",
                "SHOW work_mem",
                "78MB",
            ),
        ] {
            let fixture = open_two_backends(&server).await;
            let mut client = RawClient::new(fixture.at).await;
            client.query(sql).await.unwrap();
            assert_eq!(fixture.pin_reasons(), [why]);
            let mut other = RawClient::new(fixture.at).await;
            other.query("BEGIN").await.unwrap();
            assert_ne!(
                client.query(BACKEND_PID_QUERY).await.unwrap(),
                other.query(BACKEND_PID_QUERY).await.unwrap()
            );
            assert_eq!(client.query(proof).await.unwrap(), [expected], "{sql}");
        }
    });
}

#[test]
fn a_backend_is_held_for_one_transaction_only() {
    on_postgres!(&[], |server| {
        let fixture = open_fixture(EgressSpec {
            max: 1,
            ..as_function(server.at, PoolingMode::Transaction)
        })
        .await;
        let mut clients = Vec::new();
        for _ in 0..50 {
            clients.push(RawClient::new(fixture.at).await);
        }
        for client in &mut clients {
            assert_eq!(
                client.query("BEGIN; SELECT 1; COMMIT").await.unwrap(),
                ["1"]
            );
        }
        assert_eq!(fixture.backends.opened(), 1);
    });
}
