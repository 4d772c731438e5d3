//! State that one client leaves does not reach the next, in 50 seeds. Under an adapter that cleans
//! nothing it is found.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;

use bytes::BytesMut;
use nearpath_dbproxy::ClientContext;
use nearpath_types::egress::PoolingMode;
use postgres_protocol::IsNull;
use postgres_protocol::message::frontend;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::fixture::{AdapterFixture, run_local};
use crate::postgres::{as_function, on_postgres, open_fixture};
use crate::postgres_raw::RawClient;
use crate::postgres_server::PostgresServer;

/// Kinds of state that a client can leave.
const LEFTOVERS: [&str; 14] = [
    "half-read reply",
    "open transaction",
    "failed transaction",
    "settings",
    "reported settings",
    "temporary table",
    "prepared statement",
    "statement of SQL",
    "unsent bytes",
    "series without end",
    "advisory lock",
    "listening",
    "copy",
    "a function's own",
];

/// After these a client would wait forever, or another statement would end the open state.
const NOTHING_AFTER: [&str; 4] = [
    "half-read reply",
    "unsent bytes",
    "series without end",
    "copy",
];

const SETUP: &str = "CREATE TABLE ledger (a int);
    CREATE FUNCTION sly() RETURNS int LANGUAGE plpgsql AS $$ BEGIN
        PERFORM pg_advisory_lock(77), set_config('work_mem', '77MB', false); RETURN 1; END $$";

/// Leaves the state behind.
#[expect(
    clippy::too_many_lines,
    reason = "a table of cases, or one conversation from begin to end"
)]
async fn leave_behind(client: &mut RawClient, what: &str) {
    let orders = match what {
        "half-read reply" => {
            client
                .send(|out| {
                    frontend::query("SELECT repeat('x', 100) FROM generate_series(1, 5000)", out)
                        .unwrap()
                })
                .await;
            client.read_message().await;
            return;
        }
        "unsent bytes" => {
            return client
                .send(|out| out.extend_from_slice(b"Q\0\0\0\x40SELECT 'half of"))
                .await;
        }
        "series without end" => {
            let series = |out: &mut BytesMut| {
                frontend::parse("left", "INSERT INTO ledger VALUES (1)", [], out).unwrap();
                let none = std::iter::empty::<i16>;
                let bound = frontend::bind(
                    "",
                    "left",
                    none(),
                    std::iter::empty::<i32>(),
                    |_, _| Ok(IsNull::Yes),
                    none(),
                    out,
                );
                assert!(bound.is_ok());
                frontend::execute("", 0, out).unwrap();
                frontend::flush(out);
            };
            client.send(series).await;
            while client
                .read_message()
                .await
                .is_some_and(|(tag, _)| !matches!(tag, b'C' | b'E'))
            {}
            return;
        }
        "copy" => {
            client
                .send(|out| frontend::query("COPY ledger FROM STDIN", out).unwrap())
                .await;
            while client
                .read_message()
                .await
                .is_some_and(|(tag, _)| !matches!(tag, b'G' | b'E'))
            {}
            return client
                .send(|out| out.extend_from_slice(b"d\0\0\0\x061\n"))
                .await;
        }
        "prepared statement" => {
            let series = |out: &mut BytesMut| {
                frontend::parse("left", "SELECT 'left'", [], out).unwrap();
                frontend::parse("", "SELECT 'left'", [], out).unwrap();
                frontend::sync(out);
            };
            client.send(series).await;
            return drop(client.read_rows().await.unwrap());
        }
        "open transaction" => ["BEGIN", "INSERT INTO ledger VALUES (1)"],
        "failed transaction" => ["BEGIN", "SELECT 1/0"],
        "settings" => ["SET work_mem = '77MB'", "SET search_path = pg_catalog"],
        "reported settings" => [
            "SET TimeZone = 'Asia/Tokyo'",
            "SET application_name = 'left'; SET DateStyle = 'German'",
        ],
        "temporary table" => ["CREATE TEMP TABLE left_over (a int)", "SELECT 1"],
        "statement of SQL" => ["PREPARE left_over AS SELECT 1", "SELECT 1"],
        "advisory lock" => ["SELECT pg_advisory_lock(77)", "SELECT 1"],
        "listening" => ["LISTEN news", "SELECT 1"],
        "a function's own" => ["SELECT sly()", "SELECT 1"],
        other => panic!("{other}"),
    };
    for order in orders {
        // An error may be the state that is left.
        let _ = client.query(order).await;
    }
}

/// Returns the state that a client finds and should not.
async fn find_leftovers(client: &mut RawClient, marker: u64) -> Vec<String> {
    let mut found = Vec::new();
    let expected = [
        (format!("SELECT 'mine {marker}'"), format!("mine {marker}")),
        ("SHOW work_mem".into(), "4MB".into()),
        ("SHOW search_path".into(), "\"$user\", public".into()),
        ("SHOW TimeZone".into(), "Etc/UTC".into()),
        ("SHOW DateStyle".into(), "ISO, MDY".into()),
        ("SHOW application_name".into(), String::new()),
        ("SELECT count(*) FROM ledger".into(), "0".into()),
        (
            "SELECT to_regclass('pg_temp.left_over')".into(),
            "null".into(),
        ),
        (
            "SELECT count(*) FROM pg_prepared_statements WHERE name NOT LIKE 'nearpath%'".into(),
            "0".into(),
        ),
        (
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
                .into(),
            "0".into(),
        ),
        (
            "SELECT count(*) FROM pg_listening_channels()".into(),
            "0".into(),
        ),
        ("SELECT now() = statement_timestamp()".into(), "t".into()),
    ];
    for (sql, right) in expected {
        match client.query(&sql).await {
            Ok(rows) if rows == [right.as_str()] => {}
            other => found.push(format!("{sql}: {other:?}")),
        }
    }
    // An unnamed statement that this client did not prepare.
    let series = |out: &mut BytesMut| {
        frontend::describe(b'S', "left", out).unwrap();
        frontend::sync(out);
    };
    client.send(series).await;
    if client.read_rows().await.is_ok() {
        found.push("another's prepared statement".into());
    }
    found
}

/// A client leaves what the seed says; another looks for it.
async fn run_two_clients(at: SocketAddr, seed: u64) -> Vec<String> {
    let random = seeded_numbers(seed);
    let mut first = RawClient::new(at).await;
    for draw in 0..=random(7, 3) {
        let what = LEFTOVERS[random(draw, LEFTOVERS.len())];
        leave_behind(&mut first, what).await;
        if NOTHING_AFTER.contains(&what) {
            break;
        }
    }
    first.leave(random(9, 2) == 0).await;
    let mut second = RawClient::new(at).await;
    let found = find_leftovers(&mut second, seed).await;
    second.leave(true).await;
    found
}

/// Returns numbers that follow from a seed: `(which, below)`.
fn seeded_numbers(seed: u64) -> impl Fn(usize, usize) -> usize {
    move |which, below| {
        let mixed = (seed + 1)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .wrapping_add(which as u64)
            .wrapping_mul(0xbf58_476d_1ce4_e5b9);
        ((mixed ^ (mixed >> 31)) % below as u64) as usize
    }
}

#[test]
fn the_next_client_finds_no_leftovers() {
    on_postgres!(&["timezone=Etc/UTC"], |server| {
        server.sql(SETUP).await;
        for mode in [PoolingMode::Transaction, PoolingMode::Session] {
            // One backend at a time: the second client gets the first one's, if that one may serve
            // again.
            let fixture = open_fixture(nearpath_types::egress::EgressSpec {
                max: 1,
                ..as_function(server.at, mode)
            })
            .await;
            for seed in 0..50 {
                let found = run_two_clients(fixture.at, seed).await;
                assert!(found.is_empty(), "{mode:?}, seed {seed}: {found:#?}");
            }
            assert!(
                fixture.backends.max_open() == 1 && fixture.backends.opened() < 50,
                "some served again"
            );
        }
        assert!(!server.read_log().contains("PANIC"));
    });
}

#[test]
fn every_leftover_is_found_where_nothing_is_cleaned() {
    on_postgres!(&["timezone=Etc/UTC"], |server| {
        server.sql(SETUP).await;
        server.sql("CREATE ROLE other SUPERUSER LOGIN").await;
        server.set_auth_method("trust").await;
        for what in LEFTOVERS {
            let fixture = AdapterFixture::open_with(
                as_function(server.at, PoolingMode::Session),
                &[],
                serve_uncleaned,
            )
            .await;
            SESSION.take();
            let mut first = RawClient::new(fixture.at).await;
            leave_behind(&mut first, what).await;
            first.leave(true).await;
            fixture.wait_served(1).await;
            let looking = async {
                let mut second = RawClient::new(fixture.at).await;
                find_leftovers(&mut second, 1).await
            };
            let found = tokio::time::timeout(std::time::Duration::from_secs(3), looking).await;
            assert!(
                found.is_err() || found.is_ok_and(|found| !found.is_empty()),
                "{what} was not found"
            );
            SESSION.take();
            end_sessions(&server).await;
        }
    });
}

async fn end_sessions(server: &PostgresServer) {
    server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()").await;
    server.sql("TRUNCATE ledger").await;
}

thread_local! {
    static SESSION: RefCell<Option<TcpStream>> = const { RefCell::new(None) };
}

/// Gives the same session to every client, uncleaned.
async fn serve_uncleaned(mut client: TcpStream, context: ClientContext) -> io::Result<()> {
    let mut packet = vec![0; 4096];
    assert!(client.read(&mut packet).await? > 0);
    let kept = SESSION.take();
    let mut session = match kept {
        Some(session) => session,
        None => {
            let mut session =
                TcpStream::connect(("127.0.0.1", context.upstream.destination.egress.port)).await?;
            session
                .write_all(b"\0\0\0\x26\0\x03\0\0user\0other\0database\0postgres\0\0")
                .await?;
            let mut greeting = [0; 4096];
            let mut received = 0;
            while !greeting[..received].ends_with(b"Z\0\0\0\x05I") {
                received += session.read(&mut greeting[received..]).await?;
            }
            session
        }
    };
    client.write_all(b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I").await?;
    let (mut received, mut heard) = ([0; 65536], [0; 65536]);
    loop {
        tokio::select! {
            read = client.read(&mut received) => {
                let words = &received[..read.unwrap_or(0)];
                session.write_all(words.strip_suffix(b"X\0\0\0\x04").unwrap_or(words)).await?;
                if words.is_empty() || words.ends_with(b"X\0\0\0\x04") { break }
            }
            read = session.read(&mut heard) => {
                let read = read?;
                if read == 0 || client.write_all(&heard[..read]).await.is_err() { break }
            }
        }
    }
    SESSION.set(Some(session));
    Ok(())
}
