//! Redis and its clients.

use nearpath_types::egress::{EgressLogin, EgressProtocol, EgressSpec};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::Command;

use crate::clients::{program_output, python, run_program, run_script};
use crate::fixture::{AdapterFixture, default_egress, node_login, run_local};
use crate::server::{self, TestServer, loopback_host};

macro_rules! need {
    ($what:expr, $name:literal) => {
        match $what {
            Some(it) => it,
            None => nearpath_testkit::skip!(concat!($name, " is missing")),
        }
    };
}
pub(crate) use need;

pub(crate) async fn open_fixture(server: &TestServer) -> AdapterFixture {
    open_fixture_with(server, |it| it).await
}

pub(crate) async fn open_fixture_with(
    server: &TestServer,
    change: impl Fn(EgressSpec) -> EgressSpec,
) -> AdapterFixture {
    AdapterFixture::open(
        change(default_egress(EgressProtocol::Redis, server.at)),
        &[],
    )
    .await
}

/// Sends `text` as an inline command, and reads until `end`.
pub(crate) async fn exchange(client: &mut TcpStream, text: &str, end: &str) -> String {
    client.write_all(text.as_bytes()).await.unwrap();
    let (mut received, mut part) = (Vec::new(), [0; 4096]);
    while !received.ends_with(end.as_bytes()) {
        let read = client.read(&mut part).await.unwrap();
        assert!(
            read > 0,
            "it closed after {:?}",
            String::from_utf8_lossy(&received)
        );
        received.extend_from_slice(&part[..read]);
    }
    String::from_utf8(received).unwrap()
}

/// The first command of redis-py 8, go-redis 9.15 and Lettuce 7 is one that Redis refuses.
#[test]
fn clients_that_ask_for_notifications_of_maintenance_share_a_connection() {
    run_local(async {
        let server = need!(server::start_redis(&[]).await, "redis-server");
        let fixture = open_fixture_with(&server, |it| EgressSpec { max: 1, ..it }).await;
        let mut clients = Vec::new();
        for number in 0..3 {
            let mut client = TcpStream::connect(fixture.at).await.unwrap();
            let refused = exchange(&mut client, "CLIENT MAINT_NOTIFICATIONS ON\r\n", "\r\n").await;
            assert!(refused.starts_with("-ERR"), "{refused}");
            let answer = exchange(&mut client, &format!("ECHO {number}\r\n"), "\r\n").await;
            assert!(answer.starts_with("$1\r\n"), "{answer}");
            clients.push(client);
        }
        assert_eq!(fixture.backends.opened(), 1);
    });
}

/// Flags that valkey-go, rueidis and Valkey GLIDE can set at their start. Some servers refuse them.
const START_FLAGS: [&str; 3] = [
    "CLIENT CAPA redirect\r\n",
    "CLIENT NO-TOUCH ON\r\n",
    "CLIENT NO-EVICT ON\r\n",
];

#[test]
fn clients_that_set_flags_at_their_start_share_a_connection() {
    run_local(async {
        let server = need!(server::start_redis(&[]).await, "redis-server");
        let fixture = open_fixture_with(&server, |it| EgressSpec { max: 1, ..it }).await;
        let mut clients = Vec::new();
        for number in 0..3 {
            let mut client = TcpStream::connect(fixture.at).await.unwrap();
            for flag in START_FLAGS {
                exchange(&mut client, flag, "\r\n").await;
            }
            let answer = exchange(&mut client, &format!("ECHO {number}\r\n"), "\r\n").await;
            assert!(answer.starts_with("$1\r\n"), "{answer}");
            clients.push(client);
        }
        assert_eq!(fixture.backends.opened(), 1);
        assert_eq!(fixture.pin_reasons(), [""; 0]);
    });
}

#[test]
fn a_flag_of_a_client_is_set_on_each_of_its_connections() {
    run_local(async {
        let server = need!(server::start_redis(&[]).await, "redis-server");
        let fixture = open_fixture_with(&server, |it| EgressSpec { max: 2, ..it }).await;
        let mut first = TcpStream::connect(fixture.at).await.unwrap();
        let set = exchange(&mut first, "CLIENT NO-EVICT ON\r\n", "\r\n").await;
        assert_eq!(set, "+OK\r\n");
        // It keeps its connection, so the next client gets a new one.
        exchange(&mut first, "MULTI\r\n", "\r\n").await;
        let mut second = TcpStream::connect(fixture.at).await.unwrap();
        exchange(&mut second, "CLIENT NO-EVICT ON\r\n", "\r\n").await;
        let info = exchange(&mut second, "CLIENT INFO\r\n", "\n\r\n").await;
        assert!(info.contains(" flags=e "), "{info}");
        let mut other = TcpStream::connect(fixture.at).await.unwrap();
        drop((first, second));
        let info = exchange(&mut other, "CLIENT INFO\r\n", "\n\r\n").await;
        assert!(info.contains(" flags=N "), "{info}");
    });
}

/// Redis 7.0 keeps `NO-EVICT` at a `RESET`.
#[test]
fn a_flag_set_in_a_transaction_does_not_reach_the_next_client() {
    run_local(async {
        let server = need!(server::start_redis(&[]).await, "redis-server");
        let fixture = open_fixture_with(&server, |it| EgressSpec { max: 1, ..it }).await;
        let mut first = TcpStream::connect(fixture.at).await.unwrap();
        exchange(&mut first, "MULTI\r\n", "\r\n").await;
        exchange(&mut first, "CLIENT NO-EVICT ON\r\n", "+QUEUED\r\n").await;
        exchange(&mut first, "EXEC\r\n", "*1\r\n+OK\r\n").await;
        let info = exchange(&mut first, "CLIENT INFO\r\n", "\n\r\n").await;
        assert!(info.contains(" flags=e "), "{info}");
        drop(first);
        let mut next = TcpStream::connect(fixture.at).await.unwrap();
        let info = exchange(&mut next, "CLIENT INFO\r\n", "\n\r\n").await;
        assert!(info.contains(" flags=N "), "{info}");
    });
}

pub(crate) const PYTHON_SCRIPT: &str = r#"
import sys, redis, threading
host, port = sys.argv[1], int(sys.argv[2])
for protocol in (2, 3):
    r = redis.Redis(host, port, db=3, protocol=protocol, client_name="me", decode_responses=True)
    assert r.ping()
    r.set("a", "x" * 300_000); assert len(r.get("a")) == 300_000
    assert r.client_getname() == "me"
    p = r.pipeline(transaction=False)
    for i in range(3000): p.set(f"k{i}", i); p.get(f"k{i}")
    out = p.execute(); assert out[1::2] == [str(i) for i in range(3000)]
    with r.pipeline() as p:
        p.watch("n"); v = int(p.get("n") or 0); p.multi(); p.set("n", v + 1); assert p.execute() == [True]
    assert r.eval("return {1,{2,'x'}}", 0) == [1, [2, "x"]]
    r.delete("h"); r.hset("h", mapping={"a": "1", "b": "2"}); assert r.hgetall("h") == {"a": "1", "b": "2"}
    sub = r.pubsub(); sub.subscribe("news"); assert sub.get_message(timeout=5)["type"] == "subscribe"
    assert r.publish("news", "hello") >= 1
    assert sub.get_message(timeout=5)["data"] == "hello"
    sub.close()
    pusher = threading.Timer(0.05, lambda: redis.Redis(host, port, db=3).lpush("list", "v"))
    pusher.start(); assert list(r.blpop("list", 5)) == ["list", "v"]; pusher.join()
    try: r.execute_command("NOSUCH"); raise SystemExit("no error")
    except redis.ResponseError: pass
    r.close()
print("good")
"#;

#[test]
fn redis_py_runs_unmodified_and_twice() {
    run_local(async {
        let server = need!(server::start_redis(&[]).await, "redis-server");
        let python = need!(python().await, "Python with redis");
        let fixture = open_fixture(&server).await;
        for _ in 0..2 {
            assert_eq!(
                run_script(python, PYTHON_SCRIPT, fixture.at).await,
                "good\n"
            );
        }
        assert!(fixture.pin_reasons().contains(&"SUBSCRIBE"));
    });
}

/// Client-side caching of redis-py. It demands a newer server than some systems have; the commands
/// exist since 6.0.
const CLIENT_CACHING_SCRIPT: &str = r#"
import sys, time, redis, redis.connection
from redis.cache import CacheConfig
host, port = sys.argv[1], int(sys.argv[2])
redis.connection.CacheProxyConnection.MIN_ALLOWED_VERSION = "6.0.0"
other = redis.Redis(host, port, decode_responses=True)
other.set("k", "old")
settings = {"protocol": 3, "cache_config": CacheConfig(), "decode_responses": True}
r = redis.Redis(connection_pool=redis.ConnectionPool(host=host, port=port, **settings))
assert r.get("k") == "old" and r.get("k") == "old"
assert r.connection_pool.cache.size == 1, "it is kept in the client"
other.set("k", "new")
until = time.monotonic() + 20
while r.get("k") != "new": assert time.monotonic() < until, "no invalidation arrived"
r.close(); other.close()
print("good")
"#;

#[test]
fn client_tracking_pins_its_connection_and_does_not_reach_the_next() {
    run_local(async {
        let server = need!(server::start_redis(&[]).await, "redis-server");
        let fixture = open_fixture(&server).await;
        const INVALIDATION: &str = ">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n";
        for _ in 0..2 {
            let mut tracks = TcpStream::connect(fixture.at).await.unwrap();
            exchange(
                &mut tracks,
                "HELLO 3\r\nCLIENT TRACKING ON\r\nSET k old\r\nGET k\r\n",
                "old\r\n",
            )
            .await;
            let mut writes = TcpStream::connect(fixture.at).await.unwrap();
            exchange(&mut writes, "SET k new\r\n", "+OK\r\n").await;
            let told = exchange(&mut tracks, "", INVALIDATION).await;
            assert_eq!(
                told, INVALIDATION,
                "though the client has asked for nothing"
            );
        }
        assert!(
            fixture.pin_reasons().contains(&"CLIENT"),
            "{:?}",
            fixture.pin_reasons()
        );
        fixture.wait_served(4).await;
        let mut next = TcpStream::connect(fixture.at).await.unwrap();
        let received = exchange(
            &mut next,
            "HELLO 3\r\nGET k\r\nSET k newer\r\nCLIENT TRACKINGINFO\r\n",
            "prefixes\r\n*0\r\n",
        )
        .await;
        assert!(
            received.contains("off") && !received.contains("invalidate"),
            "{received}"
        );
        assert!(
            fixture.backends.opened() <= 3,
            "it is used again after a reset"
        );
    });
}

#[test]
fn redis_py_caches_values_and_receives_invalidations() {
    run_local(async {
        let server = need!(server::start_redis(&[]).await, "redis-server");
        let python = need!(python().await, "Python with redis");
        let natively = run_script(python, CLIENT_CACHING_SCRIPT, server.at).await;
        let fixture = open_fixture(&server).await;
        for _ in 0..2 {
            assert_eq!(
                run_script(python, CLIENT_CACHING_SCRIPT, fixture.at).await,
                natively
            );
        }
        assert!(
            fixture.pin_reasons().contains(&"CLIENT"),
            "{:?}",
            fixture.pin_reasons()
        );
    });
}

#[test]
fn redis_cli_runs_unmodified_and_twice() {
    run_local(async {
        let server = need!(server::start_redis(&[]).await, "redis-server");
        let fixture = open_fixture(&server).await;
        let port = fixture.at.port().to_string();
        for _ in 0..2 {
            for more in [&["-2"][..], &["-3"], &["-n", "5"]] {
                let mut cli = Command::new("redis-cli");
                cli.args(["-h", &loopback_host(), "-p", &port]).args(more);
                let received =
                    run_program(&mut cli, "SET a b\nGET a\nMULTI\nGET a\nEXEC\nQUIT\n").await;
                assert_eq!(
                    received.lines().filter(|line| line.contains('b')).count(),
                    2,
                    "{received}"
                );
            }
        }
    });
}

#[test]
fn clients_one_after_the_other_share_a_connection_and_its_start() {
    run_local(async {
        let server = need!(
            server::start_redis(&["--requirepass", "pw"]).await,
            "redis-server"
        );
        let fixture = open_fixture(&server).await;
        for _ in 0..10 {
            let mut client = TcpStream::connect(fixture.at).await.unwrap();
            let received = exchange(
                &mut client,
                "AUTH pw\r\nSELECT 2\r\nSET k v\r\nGET k\r\n",
                "v\r\n",
            )
            .await;
            assert_eq!(received, "+OK\r\n+OK\r\n+OK\r\n$1\r\nv\r\n");
        }
        fixture.wait_served(10).await;
        assert_eq!(fixture.backends.opened(), 1);
        let mut wrong = TcpStream::connect(fixture.at).await.unwrap();
        assert!(
            exchange(&mut wrong, "AUTH other\r\n", "\r\n")
                .await
                .starts_with("-WRONGPASS")
        );
        assert!(
            exchange(&mut wrong, "GET k\r\n", "\r\n")
                .await
                .starts_with("-NOAUTH"),
            "a wrong password opens nothing"
        );
        let mut none = TcpStream::connect(fixture.at).await.unwrap();
        assert!(
            exchange(&mut none, "GET k\r\n", "\r\n")
                .await
                .starts_with("-NOAUTH"),
            "no client uses another's login"
        );
    });
}

#[test]
fn the_node_logs_in_where_it_is_configured() {
    run_local(async {
        let server = need!(
            server::start_redis(&["--requirepass", "pw"]).await,
            "redis-server"
        );
        let python = need!(python().await, "Python with redis");
        let egress = EgressSpec {
            login: node_login("default"),
            ..default_egress(EgressProtocol::Redis, server.at)
        };
        let fixture = AdapterFixture::open(egress, &[("password", "pw\n")]).await;
        assert_eq!(
            run_script(python, PYTHON_SCRIPT, fixture.at).await,
            "good\n"
        );
        let own = PYTHON_SCRIPT.replace("db=3,", "db=3, username='me', password='ignored',");
        assert_eq!(run_script(python, &own, fixture.at).await, "good\n");
    });
}

#[test]
fn a_client_begins_in_the_database_that_egress_names() {
    run_local(async {
        let server = need!(
            server::start_redis(&["--requirepass", "pw"]).await,
            "redis-server"
        );
        let login = node_login("default").map(|login| EgressLogin {
            database: Some("3".into()),
            ..login
        });
        let egress = EgressSpec {
            login,
            ..default_egress(EgressProtocol::Redis, server.at)
        };
        let fixture = AdapterFixture::open(egress, &[("password", "pw\n")]).await;
        for (words, last, replies) in [
            (
                "SET k three\r\nSELECT 0\r\nSET k none\r\n",
                "+OK\r\n+OK\r\n+OK\r\n",
                "+OK\r\n+OK\r\n+OK\r\n",
            ),
            ("GET k\r\n", "three\r\n", "$5\r\nthree\r\n"),
            (
                "SELECT 1\r\nRESET\r\nGET k\r\n",
                "three\r\n",
                "+OK\r\n+RESET\r\n$5\r\nthree\r\n",
            ),
            ("SELECT 0\r\nGET k\r\n", "none\r\n", "+OK\r\n$4\r\nnone\r\n"),
        ] {
            let mut client = TcpStream::connect(fixture.at).await.unwrap();
            assert_eq!(exchange(&mut client, words, last).await, replies);
        }
    });
}

#[test]
fn many_clients_never_exceed_max() {
    run_local(async {
        let server = need!(server::start_redis(&[]).await, "redis-server");
        let egress = EgressSpec {
            max: 3,
            ..default_egress(EgressProtocol::Redis, server.at)
        };
        let fixture = AdapterFixture::open(egress, &[]).await;
        let clients = (0..40).map(|at| {
            let to = fixture.at;
            tokio::task::spawn_local(async move {
                let mut client = TcpStream::connect(to).await.unwrap();
                for turn in 0..10 {
                    let text = format!(
                        "SELECT {}\r\nMULTI\r\nSET k{at} {turn}\r\nGET k{at}\r\nEXEC\r\n",
                        at % 4
                    );
                    let received = exchange(&mut client, &text, &format!("{turn}\r\n")).await;
                    assert!(received.contains("*2\r\n+OK\r\n"), "{received}");
                }
            })
        });
        for client in clients.collect::<Vec<_>>() {
            client.await.unwrap();
        }
        assert!(fixture.backends.max_open() <= 3);
        fixture.wait_served(40).await;
        assert_eq!(fixture.pin_reasons(), Vec::<&str>::new());
    });
}

#[test]
fn a_client_that_waits_too_long_gets_the_setting_to_change() {
    run_local(async {
        let server = need!(server::start_redis(&[]).await, "redis-server");
        let wait = std::time::Duration::from_millis(100);
        let egress = EgressSpec {
            max: 1,
            wait,
            ..default_egress(EgressProtocol::Redis, server.at)
        };
        let fixture = AdapterFixture::open(egress, &[]).await;
        let mut holder = TcpStream::connect(fixture.at).await.unwrap();
        exchange(&mut holder, "WATCH a\r\n", "+OK\r\n").await;
        let mut other = TcpStream::connect(fixture.at).await.unwrap();
        let received = exchange(&mut other, "PING\r\n", "\r\n").await;
        assert!(
            received.starts_with("-ERR max number of clients reached") && received.contains("max="),
            "{received}"
        );
        assert_eq!(
            exchange(&mut holder, "UNWATCH\r\n", "\r\n").await,
            "+OK\r\n"
        );
        let mut third = TcpStream::connect(fixture.at).await.unwrap();
        assert_eq!(exchange(&mut third, "PING\r\n", "\r\n").await, "+PONG\r\n");
    });
}

#[test]
fn a_server_that_restarts_or_hangs_up_costs_no_error() {
    run_local(async {
        let mut server = need!(server::start_redis(&[]).await, "redis-server");
        let fixture = open_fixture(&server).await;
        let mut client = TcpStream::connect(fixture.at).await.unwrap();
        exchange(&mut client, "SELECT 2\r\nPING\r\n", "+PONG\r\n").await;
        server.stop().await;
        let mut early = TcpStream::connect(fixture.at).await.unwrap();
        assert!(
            exchange(&mut early, "PING\r\n", "\r\n")
                .await
                .starts_with("-ERR"),
            "nothing listens"
        );
        server.restart().await;
        assert_eq!(
            exchange(&mut client, "PING\r\n", "\r\n").await,
            "+PONG\r\n",
            "the client's own connection goes on"
        );
        let mut admin = TcpStream::connect(server.at).await.unwrap();
        let killed = exchange(&mut admin, "CLIENT KILL TYPE normal SKIPME yes\r\n", "\r\n").await;
        assert_eq!(killed, ":1\r\n");
        assert_eq!(
            exchange(&mut client, "PING\r\n", "\r\n").await,
            "+PONG\r\n",
            "as with a server's own idle timeout"
        );
    });
}

#[test]
fn the_error_of_a_full_server_reaches_the_client() {
    run_local(async {
        let server = need!(
            server::start_redis(&["--maxclients", "1"]).await,
            "redis-server"
        );
        let fixture = open_fixture(&server).await;
        let taken = std::cell::RefCell::new(None);
        nearpath_testkit::eventually("the place is taken", async || {
            let mut client = TcpStream::connect(server.at).await.unwrap();
            let _ = client.write_all(b"PING\r\n").await;
            let ours = client.read(&mut [0; 512]).await.is_ok_and(|read| read == 7);
            taken.replace(ours.then_some(client));
            ours
        })
        .await;
        let mut client = TcpStream::connect(fixture.at).await.unwrap();
        let received = exchange(&mut client, "PING\r\n", "\r\n").await;
        assert_eq!(received, "-ERR max number of clients reached\r\n");
    });
}

#[test]
fn a_protocol_error_is_reported_and_closes() {
    run_local(async {
        let server = need!(server::start_redis(&[]).await, "redis-server");
        let fixture = open_fixture(&server).await;
        for text in ["*2\r\n:1\r\n+x\r\n", "*1\r\n$x\r\n"] {
            let mut client = TcpStream::connect(fixture.at).await.unwrap();
            assert_eq!(
                exchange(&mut client, text, "\r\n").await,
                "-ERR Protocol error\r\n",
                "{text}"
            );
            assert_eq!(client.read(&mut [0; 1]).await.unwrap(), 0);
        }
        assert_eq!(fixture.backends.opened(), 0);
        let mut half = TcpStream::connect(fixture.at).await.unwrap();
        half.write_all(b"PING\r\n*1\r\n$4\r\nPING\r\n*1\r\n$4\r\nQUIT\r\n")
            .await
            .unwrap();
        half.shutdown().await.unwrap();
        let mut received = String::new();
        half.read_to_string(&mut received).await.unwrap();
        assert_eq!(
            received, "+PONG\r\n+PONG\r\n+OK\r\n",
            "a client that has said all hears all"
        );
    });
}

#[test]
fn a_killed_client_takes_nothing_out_of_a_list() {
    run_local(async {
        let server = need!(server::start_redis(&[]).await, "redis-server");
        let fixture = open_fixture(&server).await;
        let mut client = TcpStream::connect(fixture.at).await.unwrap();
        client
            .write_all(b"BLPOP list 0\r\nSUBSCRIBE later\r\n")
            .await
            .unwrap();
        let mut admin = TcpStream::connect(server.at).await.unwrap();
        let blocked = async |count: &str, admin: &mut TcpStream| {
            admin.write_all(b"INFO clients\r\n").await.unwrap();
            let mut part = [0; 8192];
            let read = admin.read(&mut part).await.unwrap();
            String::from_utf8_lossy(&part[..read]).contains(&format!("blocked_clients:{count}"))
        };
        nearpath_testkit::eventually("it blocks", async || blocked("1", &mut admin).await).await;
        drop(client);
        nearpath_testkit::eventually("the server knows that it left", async || {
            blocked("0", &mut admin).await
        })
        .await;
        exchange(&mut admin, "LPUSH list v\r\n", ":1\r\n").await;
        assert_eq!(
            exchange(&mut admin, "LLEN list\r\n", "\r\n").await,
            ":1\r\n"
        );
    });
}

#[test]
fn redis_benchmark_runs_through_it() {
    run_local(async {
        let server = need!(server::start_redis(&[]).await, "redis-server");
        let fixture = open_fixture(&server).await;
        let mut bench = Command::new("redis-benchmark");
        let port = fixture.at.port().to_string();
        bench.args([
            "-h",
            &loopback_host(),
            "-p",
            &port,
            "-n",
            "2000",
            "-c",
            "30",
            "-P",
            "16",
            "-q",
            "-t",
            "get,set,lpush,lrange_100,mset",
        ]);
        let done = program_output(&mut bench, "").await;
        assert!(done.status.success(), "{done:?}");
        assert!(
            !String::from_utf8_lossy(&done.stdout).contains("rror"),
            "{done:?}"
        );
        assert!(fixture.backends.max_open() <= 20);
    });
}
