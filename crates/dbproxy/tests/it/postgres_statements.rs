//! What follows a client from one backend to the next, and what keeps it on its own.

use bytes::BytesMut;
use nearpath_types::egress::{Egress, Mode};
use postgres_protocol::IsNull;
use postgres_protocol::message::frontend;

use crate::postgres::{as_function, on_postgres, stage};
use crate::postgres_raw::Raw;
use crate::postgres_server::Postgres;
use crate::stage::{Stage, on_stage};

const PID: &str = "SELECT pg_backend_pid()";

async fn two_backends(server: &Postgres) -> Stage {
    stage(Egress { max: 2, ..as_function(server.at, Mode::Transaction) }).await
}

/// Leaves `client` no other backend than one that it did not have before.
async fn drive_away(client: &mut Raw, stage: &Stage) -> Raw {
    let before = client.ask(PID).await.unwrap();
    let mut other = Raw::new(stage.at).await;
    other.ask("BEGIN").await.unwrap();
    if other.ask(PID).await.unwrap() != before {
        // It took the other one: the two change places.
        let mut third = Raw::new(stage.at).await;
        third.ask("BEGIN").await.unwrap();
        assert_eq!(third.ask(PID).await.unwrap(), before);
        other = third;
    }
    assert_ne!(client.ask(PID).await.unwrap(), before);
    other
}

fn run(name: &str, out: &mut BytesMut) {
    let none = std::iter::empty::<i16>;
    let bound = frontend::bind("", name, none(), std::iter::empty::<i32>(), |_, _| Ok(IsNull::Yes), none(), out);
    assert!(bound.is_ok());
    frontend::execute("", 0, out).unwrap();
    frontend::sync(out);
}

#[test]
fn settings_and_statements_follow_their_client() {
    on_postgres!(&[], |server| {
        let stage = two_backends(&server).await;
        let mut client = Raw::new(stage.at).await;
        client.ask("SET TimeZone = 'Asia/Tokyo'; SET application_name = 'it''s \\ me'").await.unwrap();
        client.say(|out| frontend::parse("mine", "SELECT 'by name'", [], out).unwrap()).await;
        client.say(|out| frontend::parse("", "SELECT 'without'", [], out).unwrap()).await;
        client.say(frontend::sync).await;
        client.rows().await.unwrap();
        client.say(|out| run("", out)).await;
        assert_eq!(client.rows().await.unwrap(), ["without"]);
        let _other = drive_away(&mut client, &stage).await;
        assert_eq!(client.ask("SHOW TimeZone").await.unwrap(), ["Asia/Tokyo"]);
        assert_eq!(client.ask("SHOW application_name").await.unwrap(), ["it's \\ me"]);
        client.say(|out| run("mine", out)).await;
        assert_eq!(client.rows().await.unwrap(), ["by name"]);
        assert!(stage.pins().is_empty());
    });
}

/// lib/pq prepares without a name, waits, and binds afterwards: in between another client may have had the backend.
#[test]
fn a_statement_without_a_name_is_its_own_clients() {
    on_postgres!(&[], |server| {
        let stage = stage(Egress { max: 1, ..as_function(server.at, Mode::Transaction) }).await;
        let mut clients = [Raw::new(stage.at).await, Raw::new(stage.at).await];
        for (n, client) in clients.iter_mut().enumerate() {
            client.say(|out| frontend::parse("", &format!("SELECT 'of {n}'"), [], out).unwrap()).await;
            client.say(frontend::sync).await;
            client.rows().await.unwrap();
        }
        for (n, client) in clients.iter_mut().enumerate() {
            client.say(|out| run("", out)).await;
            assert_eq!(client.rows().await.unwrap(), [format!("of {n}")]);
        }
        let mut third = Raw::new(stage.at).await;
        third.say(|out| run("", out)).await;
        assert!(third.rows().await.unwrap_err().contains("26000"), "it has prepared nothing");
    });
}

#[test]
fn a_text_means_what_it_means_when_it_is_prepared() {
    on_postgres!(&[], |server| {
        let stage = stage(Egress { max: 1, ..as_function(server.at, Mode::Transaction) }).await;
        server.sql("CREATE TABLE t (a text); INSERT INTO t VALUES ('a')").await;
        for column in ["b", "c"] {
            let mut client = Raw::new(stage.at).await;
            client.say(|out| frontend::parse("all", "SELECT * FROM t", [], out).unwrap()).await;
            client.say(|out| run("all", out)).await;
            assert_eq!(client.rows().await.unwrap(), ["a"]);
            server.sql(&format!("ALTER TABLE t ADD {column} text")).await;
            client.say(|out| run("all", out)).await;
            assert!(client.rows().await.unwrap_err().contains("0A000"), "as without a pool");
            client.leave(true).await;
        }
    });
}

#[test]
fn more_statements_than_a_backend_keeps_are_prepared_again() {
    on_postgres!(&[], |server| {
        let stage = stage(Egress { max: 1, ..as_function(server.at, Mode::Transaction) }).await;
        let mut client = Raw::new(stage.at).await;
        for n in 0..300 {
            client.say(|out| frontend::parse(&format!("s{n}"), &format!("SELECT 'n{n}'"), [], out).unwrap()).await;
        }
        client.say(frontend::sync).await;
        client.rows().await.unwrap();
        for n in [0, 299, 100, 0] {
            client.say(|out| run(&format!("s{n}"), out)).await;
            assert_eq!(client.rows().await.unwrap(), [format!("n{n}")]);
        }
        let kept: u32 = client.ask("SELECT count(*) FROM pg_prepared_statements").await.unwrap()[0].parse().unwrap();
        assert!(kept <= 201, "{kept}");
    });
}

#[test]
fn what_cannot_be_moved_stays_with_its_reason() {
    on_postgres!(&[], |server| {
        for (sql, why, proof, expected) in [
            ("LISTEN news", "LISTEN", "SELECT count(*) FROM pg_listening_channels()", "1"),
            ("SET work_mem = '77MB'", "SET", "SHOW work_mem", "77MB"),
            ("CREATE TEMP TABLE t (a int)", "temporary table", "SELECT count(*) FROM t", "0"),
            ("SELECT pg_advisory_lock(7)", "advisory lock", "SELECT pg_advisory_unlock(7)", "t"),
            ("PREPARE p AS SELECT 'p'", "PREPARE", "EXECUTE p", "p"),
            ("DECLARE c CURSOR WITH HOLD FOR SELECT 'c'", "cursor WITH HOLD", "FETCH 1 FROM c", "c"),
            ("DO $$ BEGIN PERFORM set_config('work_mem', '78MB', false); END $$", "DO", "SHOW work_mem", "78MB"),
        ] {
            let stage = two_backends(&server).await;
            let mut client = Raw::new(stage.at).await;
            client.ask(sql).await.unwrap();
            assert_eq!(stage.pins(), [why]);
            let mut other = Raw::new(stage.at).await;
            other.ask("BEGIN").await.unwrap();
            assert_ne!(client.ask(PID).await.unwrap(), other.ask(PID).await.unwrap());
            assert_eq!(client.ask(proof).await.unwrap(), [expected], "{sql}");
        }
    });
}

#[test]
fn a_backend_is_a_clients_for_a_transaction_only() {
    on_postgres!(&[], |server| {
        let stage = stage(Egress { max: 1, ..as_function(server.at, Mode::Transaction) }).await;
        let mut clients = Vec::new();
        for _ in 0..50 {
            clients.push(Raw::new(stage.at).await);
        }
        for client in &mut clients {
            assert_eq!(client.ask("BEGIN; SELECT 1; COMMIT").await.unwrap(), ["1"]);
        }
        assert_eq!(stage.backends.opened(), 1);
    });
}
