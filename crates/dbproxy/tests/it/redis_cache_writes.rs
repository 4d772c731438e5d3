//! Redis: cached values, and writes that are acknowledged early.

use std::time::Duration;

use nearpath_types::egress::{CacheLimit, EgressProtocol, EgressSpec, WriteMode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::clients::{python, run_script};
use crate::fixture::{AdapterFixture, default_egress, run_local};
use crate::redis::{exchange, need};
use crate::server::{self, TestServer};

const MINUTE: Duration = Duration::from_secs(60);

async fn open_caching(server: &TestServer) -> AdapterFixture {
    AdapterFixture::open(
        EgressSpec {
            cache: Some(CacheLimit::For(MINUTE)),
            ..default_egress(EgressProtocol::Redis, server.at)
        },
        &[],
    )
    .await
}

async fn open_async_writes(server: &TestServer, flush: Duration) -> AdapterFixture {
    let writes = WriteMode::Async { flush };
    AdapterFixture::open(
        EgressSpec {
            writes,
            max: 3,
            ..default_egress(EgressProtocol::Redis, server.at)
        },
        &[],
    )
    .await
}

async fn connect(at: std::net::SocketAddr) -> TcpStream {
    TcpStream::connect(at).await.unwrap()
}

#[test]
fn a_value_is_cached_until_it_is_written() {
    run_local(async {
        let server = need!(server::start_redis(&[]).await, "redis-server");
        let fixture = open_caching(&server).await;
        let (mut one, mut two, mut admin) = (
            connect(fixture.at).await,
            connect(fixture.at).await,
            connect(server.at).await,
        );
        exchange(&mut admin, "MSET a 1 b 1\r\n", "+OK\r\n").await;
        assert_eq!(
            exchange(&mut one, "GET a\r\n", "1\r\n1\r\n").await,
            "$1\r\n1\r\n"
        );
        exchange(&mut admin, "SET a 2\r\n", "+OK\r\n").await;
        assert_eq!(
            exchange(&mut two, "GET a\r\n", "\r\n").await,
            "$1\r\n1\r\n",
            "who writes elsewhere is not seen"
        );
        assert_eq!(
            exchange(&mut two, "MGET a\r\n", "1\r\n1\r\n").await,
            "*1\r\n$1\r\n1\r\n"
        );
        assert_eq!(fixture.ledger.cache_hits.get(), 2);
        for write in ["SET a 3", "EVAL \"return 1\" 0", "INCRBY a 1"] {
            exchange(&mut one, &format!("{write}\r\n"), "\r\n").await;
            let truth = exchange(&mut admin, "GET a\r\n", "\r\n").await;
            assert_eq!(
                exchange(&mut two, "GET a\r\n", "\r\n").await,
                truth,
                "after {write}"
            );
        }
        exchange(&mut one, "MULTI\r\nSET a 9\r\nEXEC\r\n", "*1\r\n+OK\r\n").await;
        assert_eq!(
            exchange(&mut two, "GET a\r\n", "9\r\n").await,
            "$1\r\n9\r\n",
            "a transaction is a write"
        );
    });
}

#[test]
fn cached_values_are_separate_by_database_and_user_and_bypassed_in_transactions() {
    run_local(async {
        let server = need!(
            server::start_redis(&["--requirepass", "pw"]).await,
            "redis-server"
        );
        let fixture = open_caching(&server).await;
        let mut one = connect(fixture.at).await;
        exchange(
            &mut one,
            "AUTH pw\r\nSET a zero\r\nSELECT 1\r\nSET a one\r\n",
            "+OK\r\n+OK\r\n+OK\r\n+OK\r\n",
        )
        .await;
        assert!(
            exchange(&mut one, "GET a\r\n", "one\r\n")
                .await
                .ends_with("one\r\n")
        );
        exchange(&mut one, "SELECT 0\r\n", "+OK\r\n").await;
        assert!(
            exchange(&mut one, "GET a\r\n", "zero\r\n")
                .await
                .ends_with("zero\r\n")
        );
        let mut anonymous = connect(fixture.at).await;
        assert!(
            exchange(&mut anonymous, "GET a\r\n", "\r\n")
                .await
                .starts_with("-NOAUTH"),
            "no client gets what another reads"
        );
        let hits = fixture.ledger.cache_hits.get();
        let received = exchange(
            &mut one,
            "WATCH a\r\nMULTI\r\nGET a\r\nEXEC\r\n",
            "zero\r\n",
        )
        .await;
        assert_eq!(received, "+OK\r\n+OK\r\n+QUEUED\r\n*1\r\n$4\r\nzero\r\n");
        assert_eq!(fixture.ledger.cache_hits.get(), hits);
    });
}

#[test]
fn programs_run_unmodified_with_everything_on() {
    run_local(async {
        let server = need!(server::start_redis(&[]).await, "redis-server");
        let python = need!(python().await, "Python with redis");
        let writes = WriteMode::Async { flush: MINUTE };
        let egress = EgressSpec {
            writes,
            cache: Some(CacheLimit::For(MINUTE)),
            ..default_egress(EgressProtocol::Redis, server.at)
        };
        let fixture = AdapterFixture::open(egress, &[]).await;
        for _ in 0..2 {
            assert_eq!(
                run_script(python, crate::redis::PYTHON_SCRIPT, fixture.at).await,
                "good\n"
            );
        }
        assert!(fixture.ledger.early_writes.get() > 0);
        assert_eq!(fixture.ledger.failed_writes.get(), 0);
    });
}

#[test]
fn a_write_is_answered_before_the_server_does_it() {
    run_local(async {
        let server = need!(server::start_redis(&[]).await, "redis-server");
        let fixture = open_async_writes(&server, MINUTE).await;
        let (mut one, mut admin) = (connect(fixture.at).await, connect(server.at).await);
        exchange(&mut one, "PING\r\n", "+PONG\r\n").await;
        exchange(&mut admin, "CLIENT PAUSE 60000 WRITE\r\n", "+OK\r\n").await;
        // The server executes no write now, so only the node can have answered.
        assert_eq!(
            exchange(
                &mut one,
                "SET a 1\r\nSETEX b 100 2\r\nMSET c 3\r\n",
                "+OK\r\n+OK\r\n+OK\r\n"
            )
            .await
            .len(),
            15
        );
        assert_eq!(fixture.ledger.early_writes.get(), 3);
        drop(one); // its acknowledged writes are still delivered
        exchange(&mut admin, "CLIENT UNPAUSE\r\n", "+OK\r\n").await;
        fixture.wait_served(1).await;
        assert_eq!(
            exchange(&mut admin, "MGET a b c\r\n", "3\r\n").await,
            "*3\r\n$1\r\n1\r\n$1\r\n2\r\n$1\r\n3\r\n"
        );
        assert_eq!(fixture.ledger.failed_writes.get(), 0);
    });
}

#[test]
fn replies_stay_in_order() {
    run_local(async {
        let server = need!(server::start_redis(&[]).await, "redis-server");
        let fixture = open_async_writes(&server, MINUTE).await;
        let mut one = connect(fixture.at).await;
        let received = exchange(
            &mut one,
            "GET a\r\nSET a 1\r\nGET a\r\nSET a 2\r\nINCR a\r\nSET a 5 NX\r\nGET a\r\n",
            "3\r\n",
        )
        .await;
        // The last `GET` also ends in 3, so the first read may have stopped at `INCR`.
        let rest = if received.ends_with(":3\r\n") {
            exchange(&mut one, "PING\r\n", "+PONG\r\n").await
        } else {
            String::new()
        };
        let received = (received + &rest).replace("+PONG\r\n", "");
        assert_eq!(
            received,
            "$-1\r\n+OK\r\n$1\r\n1\r\n+OK\r\n:3\r\n$-1\r\n$1\r\n3\r\n"
        );
    });
}

#[test]
fn a_failure_is_reported_once_at_the_next_command_or_connection() {
    run_local(async {
        let server = need!(
            server::start_redis(&["--maxmemory", "1", "--maxmemory-policy", "noeviction"]).await,
            "redis-server"
        );
        let fixture = open_async_writes(&server, MINUTE).await;
        let mut one = connect(fixture.at).await;
        assert_eq!(exchange(&mut one, "SET a 1\r\n", "\r\n").await, "+OK\r\n");
        nearpath_testkit::eventually("it has failed", async || {
            fixture.ledger.failed_writes.get() == 1
        })
        .await;
        let received = exchange(&mut one, "PING\r\n", "\r\n").await;
        assert!(
            received.starts_with("-ERR an earlier write failed: OOM"),
            "{received}"
        );
        assert_eq!(exchange(&mut one, "PING\r\n", "\r\n").await, "+PONG\r\n");
        assert_eq!(exchange(&mut one, "SET a 1\r\n", "\r\n").await, "+OK\r\n");
        drop(one);
        fixture.wait_served(1).await;
        let mut two = connect(fixture.at).await;
        assert!(
            exchange(&mut two, "PING\r\n", "\r\n")
                .await
                .starts_with("-ERR an earlier write failed: OOM")
        );
        assert_eq!(exchange(&mut two, "PING\r\n", "\r\n").await, "+PONG\r\n");
        assert_eq!(fixture.ledger.reported_failures.get(), 2);
    });
}

#[test]
fn an_undeliverable_write_is_lost_and_reported() {
    run_local(async {
        let server = need!(server::start_redis(&[]).await, "redis-server");
        let fixture = open_async_writes(&server, Duration::from_millis(50)).await;
        let (mut one, mut admin) = (connect(fixture.at).await, connect(server.at).await);
        exchange(&mut one, "PING\r\n", "+PONG\r\n").await;
        exchange(&mut admin, "CLIENT PAUSE 60000 WRITE\r\n", "+OK\r\n").await;
        assert_eq!(exchange(&mut one, "SET a 1\r\n", "\r\n").await, "+OK\r\n");
        drop(one);
        fixture.wait_served(1).await;
        assert_eq!(fixture.ledger.failed_writes.get(), 1);
        exchange(&mut admin, "CLIENT UNPAUSE\r\n", "+OK\r\n").await;
        let mut two = connect(fixture.at).await;
        assert!(
            exchange(&mut two, "GET a\r\n", "\r\n")
                .await
                .starts_with("-ERR an earlier write failed: the connection ended")
        );
    });
}

#[test]
fn a_client_reset_loses_no_accepted_write() {
    run_local(async {
        let server = need!(server::start_redis(&[]).await, "redis-server");
        let fixture = open_async_writes(&server, MINUTE).await;
        for turn in 0..20 {
            let mut one = connect(fixture.at).await;
            one.write_all(format!("SET k{turn} 1\r\n").as_bytes())
                .await
                .unwrap();
            one.read_exact(&mut [0; 5]).await.unwrap();
            one.set_zero_linger().unwrap();
            drop(one);
        }
        fixture.wait_served(20).await;
        let mut admin = connect(server.at).await;
        assert_eq!(exchange(&mut admin, "DBSIZE\r\n", "\r\n").await, ":20\r\n");
    });
}

#[test]
fn a_learned_value_is_read_with_the_call_and_used_once() {
    run_local(async {
        let server = need!(
            server::start_redis(&["--requirepass", "pw"]).await,
            "redis-server"
        );
        let fixture = AdapterFixture::open(
            EgressSpec {
                prefetch: vec!["motd".into()],
                ..default_egress(EgressProtocol::Redis, server.at)
            },
            &[],
        )
        .await;
        let (mut admin, mut one) = (connect(server.at).await, connect(fixture.at).await);
        exchange(
            &mut admin,
            "AUTH pw\r\nSELECT 2\r\nSET motd a\r\n",
            "+OK\r\n+OK\r\n+OK\r\n",
        )
        .await;
        fixture.call_function();
        exchange(&mut one, "AUTH pw\r\nSELECT 2\r\n", "+OK\r\n+OK\r\n").await;
        assert_eq!(
            exchange(&mut one, "GET motd\r\n", "a\r\n").await,
            "$1\r\na\r\n",
            "nothing was known yet"
        );
        fixture.call_function();
        let gets = async |admin: &mut TcpStream| {
            exchange(admin, "INFO commandstats\r\n", "\r\n\r\n")
                .await
                .contains("cmdstat_get:calls=2")
        };
        nearpath_testkit::eventually("it is read ahead", async || gets(&mut admin).await).await;
        exchange(&mut admin, "SET motd b\r\n", "+OK\r\n").await;
        assert_eq!(
            exchange(&mut one, "GET motd\r\n", "\r\n").await,
            "$1\r\na\r\n",
            "as it was when the call arrived"
        );
        assert_eq!(
            exchange(&mut one, "GET motd\r\n", "b\r\n").await,
            "$1\r\nb\r\n",
            "once"
        );
        let mut anonymous = connect(fixture.at).await;
        fixture.call_function();
        assert!(
            exchange(&mut anonymous, "GET motd\r\n", "\r\n")
                .await
                .starts_with("-NOAUTH"),
            "no client gets what another reads"
        );
        fixture.call_function();
        exchange(&mut one, "SET motd c\r\n", "+OK\r\n").await;
        assert_eq!(
            exchange(&mut one, "GET motd\r\n", "c\r\n").await,
            "$1\r\nc\r\n",
            "a write ends what was read before it"
        );
        assert_eq!(fixture.ledger.prefetch_used.get(), 1);
    });
}
