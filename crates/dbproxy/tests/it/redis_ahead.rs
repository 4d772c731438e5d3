//! Redis: values that are kept, and writes that are answered before they are done.

use std::time::Duration;

use nearpath_dbproxy::redis::{foresee, serve};
use nearpath_types::egress::{Cache, Egress, Protocol, Writes};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::clients::{python, script};
use crate::redis::{ask, need};
use crate::server::{self, Server};
use crate::stage::{Stage, egress, on_stage};

const MINUTE: Duration = Duration::from_secs(60);

async fn caching(server: &Server) -> Stage {
    Stage::open(Egress { cache: Some(Cache::For(MINUTE)), ..egress(Protocol::Redis, server.at) }, &[], serve).await
}

async fn asynchronous(server: &Server, flush: Duration) -> Stage {
    let writes = Writes::Async { flush };
    Stage::open(Egress { writes, max: 3, ..egress(Protocol::Redis, server.at) }, &[], serve).await
}

async fn client(at: std::net::SocketAddr) -> TcpStream {
    TcpStream::connect(at).await.unwrap()
}

#[test]
fn a_value_is_kept_until_somebody_writes_to_it() {
    on_stage(async {
        let server = need!(server::redis(&[]).await, "redis-server");
        let stage = caching(&server).await;
        let (mut one, mut two, mut admin) = (client(stage.at).await, client(stage.at).await, client(server.at).await);
        ask(&mut admin, "MSET a 1 b 1\r\n", "+OK\r\n").await;
        assert_eq!(ask(&mut one, "GET a\r\n", "1\r\n1\r\n").await, "$1\r\n1\r\n");
        ask(&mut admin, "SET a 2\r\n", "+OK\r\n").await;
        assert_eq!(ask(&mut two, "GET a\r\n", "\r\n").await, "$1\r\n1\r\n", "who writes elsewhere is not seen");
        assert_eq!(ask(&mut two, "MGET a\r\n", "1\r\n1\r\n").await, "*1\r\n$1\r\n1\r\n");
        assert_eq!(stage.ledger.cached.get(), 2);
        for write in ["SET a 3", "EVAL \"return 1\" 0", "INCRBY a 1"] {
            ask(&mut one, &format!("{write}\r\n"), "\r\n").await;
            let truth = ask(&mut admin, "GET a\r\n", "\r\n").await;
            assert_eq!(ask(&mut two, "GET a\r\n", "\r\n").await, truth, "after {write}");
        }
        ask(&mut one, "MULTI\r\nSET a 9\r\nEXEC\r\n", "*1\r\n+OK\r\n").await;
        assert_eq!(ask(&mut two, "GET a\r\n", "9\r\n").await, "$1\r\n9\r\n", "a transaction is a write");
    });
}

#[test]
fn what_is_kept_is_apart_by_database_and_by_user_and_passed_by_in_transactions() {
    on_stage(async {
        let server = need!(server::redis(&["--requirepass", "pw"]).await, "redis-server");
        let stage = caching(&server).await;
        let mut one = client(stage.at).await;
        ask(&mut one, "AUTH pw\r\nSET a zero\r\nSELECT 1\r\nSET a one\r\n", "+OK\r\n+OK\r\n+OK\r\n+OK\r\n").await;
        assert!(ask(&mut one, "GET a\r\n", "one\r\n").await.ends_with("one\r\n"));
        ask(&mut one, "SELECT 0\r\n", "+OK\r\n").await;
        assert!(ask(&mut one, "GET a\r\n", "zero\r\n").await.ends_with("zero\r\n"));
        let mut nobody = client(stage.at).await;
        assert!(
            ask(&mut nobody, "GET a\r\n", "\r\n").await.starts_with("-NOAUTH"),
            "nobody is told what another reads"
        );
        let hits = stage.ledger.cached.get();
        let said = ask(&mut one, "WATCH a\r\nMULTI\r\nGET a\r\nEXEC\r\n", "zero\r\n").await;
        assert_eq!(said, "+OK\r\n+OK\r\n+QUEUED\r\n*1\r\n$4\r\nzero\r\n");
        assert_eq!(stage.ledger.cached.get(), hits);
    });
}

#[test]
fn programs_run_unmodified_with_everything_on() {
    on_stage(async {
        let server = need!(server::redis(&[]).await, "redis-server");
        let python = need!(python().await, "Python with redis");
        let writes = Writes::Async { flush: MINUTE };
        let egress = Egress { writes, cache: Some(Cache::For(MINUTE)), ..egress(Protocol::Redis, server.at) };
        let stage = Stage::open(egress, &[], serve).await;
        for _ in 0..2 {
            assert_eq!(script(python, crate::redis::PY, stage.at).await, "good\n");
        }
        assert!(stage.ledger.early.get() > 0);
        assert_eq!(stage.ledger.lost.get(), 0);
    });
}

#[test]
fn a_write_is_answered_before_the_server_does_it() {
    on_stage(async {
        let server = need!(server::redis(&[]).await, "redis-server");
        let stage = asynchronous(&server, MINUTE).await;
        let (mut one, mut admin) = (client(stage.at).await, client(server.at).await);
        ask(&mut one, "PING\r\n", "+PONG\r\n").await;
        ask(&mut admin, "CLIENT PAUSE 60000 WRITE\r\n", "+OK\r\n").await;
        // The server does no write now: only the node can have answered.
        assert_eq!(ask(&mut one, "SET a 1\r\nSETEX b 100 2\r\nMSET c 3\r\n", "+OK\r\n+OK\r\n+OK\r\n").await.len(), 15);
        assert_eq!(stage.ledger.early.get(), 3);
        drop(one); // and what the function has left behind is delivered
        ask(&mut admin, "CLIENT UNPAUSE\r\n", "+OK\r\n").await;
        stage.served(1).await;
        assert_eq!(ask(&mut admin, "MGET a b c\r\n", "3\r\n").await, "*3\r\n$1\r\n1\r\n$1\r\n2\r\n$1\r\n3\r\n");
        assert_eq!(stage.ledger.lost.get(), 0);
    });
}

#[test]
fn answers_stay_in_order() {
    on_stage(async {
        let server = need!(server::redis(&[]).await, "redis-server");
        let stage = asynchronous(&server, MINUTE).await;
        let mut one = client(stage.at).await;
        let said =
            ask(&mut one, "GET a\r\nSET a 1\r\nGET a\r\nSET a 2\r\nINCR a\r\nSET a 5 NX\r\nGET a\r\n", "3\r\n").await;
        // The last `GET` ends in 3, too: `ask` may have stopped at `INCR`.
        let rest = if said.ends_with(":3\r\n") { ask(&mut one, "PING\r\n", "+PONG\r\n").await } else { String::new() };
        let said = (said + &rest).replace("+PONG\r\n", "");
        assert_eq!(said, "$-1\r\n+OK\r\n$1\r\n1\r\n+OK\r\n:3\r\n$-1\r\n$1\r\n3\r\n");
    });
}

#[test]
fn a_failure_is_told_at_the_next_command_or_the_next_connection_and_once() {
    on_stage(async {
        let server =
            need!(server::redis(&["--maxmemory", "1", "--maxmemory-policy", "noeviction"]).await, "redis-server");
        let stage = asynchronous(&server, MINUTE).await;
        let mut one = client(stage.at).await;
        assert_eq!(ask(&mut one, "SET a 1\r\n", "\r\n").await, "+OK\r\n");
        nearpath_testkit::eventually("it has failed", async || stage.ledger.lost.get() == 1).await;
        let said = ask(&mut one, "PING\r\n", "\r\n").await;
        assert!(said.starts_with("-ERR an earlier write failed: OOM"), "{said}");
        assert_eq!(ask(&mut one, "PING\r\n", "\r\n").await, "+PONG\r\n");
        assert_eq!(ask(&mut one, "SET a 1\r\n", "\r\n").await, "+OK\r\n");
        drop(one);
        stage.served(1).await;
        let mut two = client(stage.at).await;
        assert!(ask(&mut two, "PING\r\n", "\r\n").await.starts_with("-ERR an earlier write failed: OOM"));
        assert_eq!(ask(&mut two, "PING\r\n", "\r\n").await, "+PONG\r\n");
        assert_eq!(stage.ledger.told.get(), 2);
    });
}

#[test]
fn what_cannot_be_delivered_in_time_is_lost_and_told() {
    on_stage(async {
        let server = need!(server::redis(&[]).await, "redis-server");
        let stage = asynchronous(&server, Duration::from_millis(50)).await;
        let (mut one, mut admin) = (client(stage.at).await, client(server.at).await);
        ask(&mut one, "PING\r\n", "+PONG\r\n").await;
        ask(&mut admin, "CLIENT PAUSE 60000 WRITE\r\n", "+OK\r\n").await;
        assert_eq!(ask(&mut one, "SET a 1\r\n", "\r\n").await, "+OK\r\n");
        drop(one);
        stage.served(1).await;
        assert_eq!(stage.ledger.lost.get(), 1);
        ask(&mut admin, "CLIENT UNPAUSE\r\n", "+OK\r\n").await;
        let mut two = client(stage.at).await;
        assert!(
            ask(&mut two, "GET a\r\n", "\r\n").await.starts_with("-ERR an earlier write failed: the connection ended")
        );
    });
}

#[test]
fn a_client_that_is_reset_loses_nothing_that_was_taken() {
    on_stage(async {
        let server = need!(server::redis(&[]).await, "redis-server");
        let stage = asynchronous(&server, MINUTE).await;
        for turn in 0..20 {
            let mut one = client(stage.at).await;
            one.write_all(format!("SET k{turn} 1\r\n").as_bytes()).await.unwrap();
            one.read_exact(&mut [0; 5]).await.unwrap();
            one.set_zero_linger().unwrap();
            drop(one);
        }
        stage.served(20).await;
        let mut admin = client(server.at).await;
        assert_eq!(ask(&mut admin, "DBSIZE\r\n", "\r\n").await, ":20\r\n");
    });
}

#[test]
fn a_value_that_was_learnt_is_read_with_the_call_and_given_once() {
    on_stage(async {
        let server = need!(server::redis(&["--requirepass", "pw"]).await, "redis-server");
        let stage =
            Stage::open(Egress { prefetch: vec!["motd".into()], ..egress(Protocol::Redis, server.at) }, &[], serve)
                .await;
        let (mut admin, mut one) = (client(server.at).await, client(stage.at).await);
        ask(&mut admin, "AUTH pw\r\nSELECT 2\r\nSET motd a\r\n", "+OK\r\n+OK\r\n+OK\r\n").await;
        stage.called(foresee);
        ask(&mut one, "AUTH pw\r\nSELECT 2\r\n", "+OK\r\n+OK\r\n").await;
        assert_eq!(ask(&mut one, "GET motd\r\n", "a\r\n").await, "$1\r\na\r\n", "nothing was known yet");
        stage.called(foresee);
        let gets = async |admin: &mut TcpStream| {
            ask(admin, "INFO commandstats\r\n", "\r\n\r\n").await.contains("cmdstat_get:calls=2")
        };
        nearpath_testkit::eventually("it is read ahead", async || gets(&mut admin).await).await;
        ask(&mut admin, "SET motd b\r\n", "+OK\r\n").await;
        assert_eq!(ask(&mut one, "GET motd\r\n", "\r\n").await, "$1\r\na\r\n", "as it was when the call arrived");
        assert_eq!(ask(&mut one, "GET motd\r\n", "b\r\n").await, "$1\r\nb\r\n", "once");
        let mut nobody = client(stage.at).await;
        stage.called(foresee);
        assert!(
            ask(&mut nobody, "GET motd\r\n", "\r\n").await.starts_with("-NOAUTH"),
            "nobody is told what another reads"
        );
        stage.called(foresee);
        ask(&mut one, "SET motd c\r\n", "+OK\r\n").await;
        assert_eq!(ask(&mut one, "GET motd\r\n", "c\r\n").await, "$1\r\nc\r\n", "a write ends what was read before it");
        assert_eq!(stage.ledger.foreseen.get(), 1);
    });
}
