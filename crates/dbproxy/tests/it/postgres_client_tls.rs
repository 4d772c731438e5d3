//! Clients that need TLS, and clients that only prefer it.

use std::net::SocketAddr;
use std::process::Output;
use std::rc::Rc;

use nearpath_dbproxy::postgres::PostgresAdapter;
use nearpath_dbproxy::{Adapter, ClientInstance};
use nearpath_types::egress::PoolingMode;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::client_tls;
use crate::fixture::{AdapterFixture, run_local};
use crate::postgres::{as_function, on_postgres, open_fixture};
use crate::postgres_server::{PASSWORD, PostgresServer, psql_command};

/// Says whether psql has TLS, and runs a statement.
const SCRIPT: [&str; 4] = ["-c", r"\conninfo", "-c", "SELECT 6 * 7"];

/// Serves a function whose settings ask for TLS.
async fn open_with_tls(server: &PostgresServer, mode: PoolingMode) -> AdapterFixture {
    let serve = |client, mut context: nearpath_dbproxy::ClientContext| {
        context.caller = Rc::new(ClientInstance {
            requires_tls: true,
            ..(*context.caller).clone()
        });
        PostgresAdapter.serve(client, context)
    };
    let secrets = [("password", PASSWORD)];
    AdapterFixture::open_with(as_function(server.at, mode), &secrets, serve).await
}

async fn run_psql(at: SocketAddr, sslmode: &str) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let roots = folder.path().join("root.crt");
    std::fs::write(&roots, &client_tls::destination().pem).unwrap();
    let mut psql = psql_command(at, "anybody", "wrong", &SCRIPT);
    psql.env("PGSSLMODE", sslmode).env("PGSSLROOTCERT", roots);
    psql.output().await.unwrap()
}

/// Returns what psql printed.
async fn psql_output(at: SocketAddr, sslmode: &str) -> String {
    let output = run_psql(at, sslmode).await;
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{sslmode}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_function_whose_settings_ask_for_tls_gets_it() {
    on_postgres!(&[], |server| {
        for mode in [PoolingMode::Transaction, PoolingMode::Session] {
            let fixture = open_with_tls(&server, mode).await;
            for sslmode in ["require", "verify-ca", "verify-full"] {
                let received = psql_output(fixture.at, sslmode).await;
                assert!(received.contains("TLSv1.3"), "{sslmode}: {received}");
                assert!(received.ends_with("42\n"), "{sslmode}: {received}");
            }
            let plain = psql_output(fixture.at, "disable").await;
            assert!(!plain.contains("TLS"), "{plain}");
        }
    });
}

#[test]
fn a_client_that_was_refused_tls_gets_it_when_it_asks_again() {
    on_postgres!(&[], |server| {
        let fixture = open_fixture(as_function(server.at, PoolingMode::Transaction)).await;
        assert!(!run_psql(fixture.at, "require").await.status.success());
        fixture.wait_served(1).await;
        let received = psql_output(fixture.at, "verify-full").await;
        assert!(received.contains("TLSv1.3"), "{received}");
        let log = fixture.log.borrow();
        assert!(log[0].contains("PGSSLMODE"), "{log:?}");
    });
}

#[test]
fn a_client_that_only_prefers_tls_stays_without() {
    on_postgres!(&[], |server| {
        let fixture = open_fixture(as_function(server.at, PoolingMode::Transaction)).await;
        for _ in 1..=3 {
            let received = psql_output(fixture.at, "prefer").await;
            assert!(!received.contains("TLS"), "{received}");
        }
        assert!(fixture.log.borrow().is_empty());
    });
}

#[test]
fn plain_text_before_the_handshake_is_no_part_of_the_encrypted_session() {
    on_postgres!(&[], |server| {
        let fixture = open_with_tls(&server, PoolingMode::Transaction).await;
        let mut client = TcpStream::connect(fixture.at).await.unwrap();
        // A request for TLS, and a startup message in the same segment.
        client
            .write_all(b"\0\0\0\x08\x04\xd2\x16\x2f\0\0\0\x10\0\x03\0\0user\0u\0\0")
            .await
            .unwrap();
        let mut answer = Vec::new();
        // The connection may end with a reset.
        let _ = client.read_to_end(&mut answer).await;
        assert!(answer.is_empty(), "{answer:?}");
        fixture.wait_served(1).await;
        assert!(fixture.ended.borrow()[0].is_err());
    });
}
