//! MariaDB and its clients.

use std::net::SocketAddr;
use std::time::Duration;

use nearpath_types::egress::{EgressProtocol, EgressSpec, PoolingMode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::Command;

use crate::clients::{program_output, python, run_program, run_script};
use crate::fixture::{AdapterFixture, default_egress, node_login, run_local};
use crate::redis::need;
use crate::scripted_server::ScriptedServer;
use crate::server::{self, TestServer, loopback_host};

/// Opens the adapter for clients that log in with their own password.
pub(crate) async fn open_with_client_login(
    server: &TestServer,
    change: impl Fn(EgressSpec) -> EgressSpec,
) -> AdapterFixture {
    AdapterFixture::open(
        change(default_egress(EgressProtocol::Mysql, server.at)),
        &[],
    )
    .await
}

/// Opens the adapter with the node's login.
pub(crate) async fn open_with_node_login(
    server: &TestServer,
    change: impl Fn(EgressSpec) -> EgressSpec,
) -> AdapterFixture {
    let egress = EgressSpec {
        login: node_login("fn"),
        ..default_egress(EgressProtocol::Mysql, server.at)
    };
    AdapterFixture::open(change(egress), &[("password", "pw\n")]).await
}

const PYTHON_SCRIPT: &str = r#"
import sys, tempfile, pymysql, mysql.connector
host, port = sys.argv[1], int(sys.argv[2])
def go(c, mark):
    k = c.cursor()
    k.execute("CREATE TEMPORARY TABLE t (id INT AUTO_INCREMENT PRIMARY KEY, v LONGTEXT)")
    k.executemany("INSERT INTO t (v) VALUES (%s)", [(str(i),) for i in range(500)])
    k.execute("SELECT LAST_INSERT_ID() > 0"); assert k.fetchall() in (((1,),), [(1,)])
    k.execute("SELECT id, v FROM t ORDER BY id"); rows = k.fetchall(); assert len(rows) == 500 and rows[499][1] == "499"
    k.execute("INSERT INTO t (v) VALUES (%s)", ("x" * 3_000_000,))
    k.execute("SELECT v FROM t WHERE id = 501"); assert len(k.fetchone()[0]) == 3_000_000
    c.commit()
    k.execute("INSERT INTO t (v) VALUES ('gone')"); c.rollback()
    k.execute("SELECT COUNT(*) FROM t WHERE v = 'gone'"); assert k.fetchone()[0] == 0
    k.execute("SET @mine = %s", (mark,)); k.execute("SELECT @mine"); assert k.fetchone()[0] == mark
    try: k.execute("SELECT nothing FROM nowhere"); raise SystemExit("no error")
    except (pymysql.err.ProgrammingError, mysql.connector.errors.ProgrammingError): pass
    k.execute("SELECT CONNECTION_ID(), DATABASE()"); assert k.fetchone()[1] == "shop"
    k.close()
c = pymysql.connect(host=host, port=port, user="fn", password="pw", database="shop", charset="utf8mb4", local_infile=True)
go(c, "a")
k = c.cursor(); k.execute("CREATE OR REPLACE PROCEDURE two() BEGIN SELECT 1; SELECT 2; END"); k.callproc("two")
assert k.fetchall() == ((1,),) and k.nextset() and k.fetchall() == ((2,),); k.nextset()
rows = tempfile.NamedTemporaryFile("w"); rows.write("".join(f"row{i}\n" for i in range(1000))); rows.flush()
k.execute("CREATE TEMPORARY TABLE f (v TEXT)"); k.execute(f"LOAD DATA LOCAL INFILE '{rows.name}' INTO TABLE f")
k.execute("SELECT COUNT(*) FROM f"); assert k.fetchone() == (1000,)
c.ping(); c.select_db("other"); c.close()
for pure in (True, False):
    c = mysql.connector.connect(host=host, port=port, user="fn", password="pw", database="shop", use_pure=pure, ssl_disabled=True)
    go(c, "b")
    k = c.cursor(prepared=True); k.execute("SELECT ?, ? + 1", ("p", 4)); assert list(k.fetchone())[0] in ("p", b"p", bytearray(b"p")); k.close()
    c.cmd_reset_connection(); c.close()
print("good")
"#;

#[test]
fn python_runs_unmodified_and_twice() {
    run_local(async {
        let server = need!(server::start_mariadb(&[]).await, "mariadbd");
        let python = need!(python().await, "Python with PyMySQL");
        for fixture in [
            open_with_client_login(&server, |it| it).await,
            open_with_node_login(&server, |it| it).await,
        ] {
            for _ in 0..2 {
                assert_eq!(
                    run_script(python, PYTHON_SCRIPT, fixture.at).await,
                    "good\n"
                );
            }
            assert!(
                fixture.ledger.resets.get() > 0 && fixture.backends.opened() < 6,
                "{} opened",
                fixture.backends.opened()
            );
        }
    });
}

/// Every kind of state that ends with the user, then the same connection's next use.
const CHANGE_USER_SCRIPT: &str = r#"
import sys, mysql.connector
host, port = sys.argv[1], int(sys.argv[2])
for turn in range(2):
    c = mysql.connector.connect(host=host, port=port, user="anybody", password="wrong", database="shop", use_pure=True, ssl_disabled=True)
    k = c.cursor()
    k.execute("SET @mine = 7"); k.execute("SET time_zone = '+05:00'")
    c.cmd_change_user("somebody", "wrong too", "other")
    k = c.cursor()
    k.execute("SELECT DATABASE(), @mine, @@time_zone, SUBSTRING_INDEX(USER(), '@', 1)"); print(k.fetchone())
    c.close()
"#;

#[test]
fn a_change_of_user_is_the_nodes_login_too() {
    run_local(async {
        let server = need!(server::start_mariadb(&[]).await, "mariadbd");
        let python = need!(python().await, "Python with mysql.connector");
        for mode in [PoolingMode::Session, PoolingMode::Transaction] {
            let fixture = open_with_node_login(&server, |it| EgressSpec { mode, ..it }).await;
            assert_eq!(
                run_script(python, CHANGE_USER_SCRIPT, fixture.at).await,
                "('other', None, 'SYSTEM', 'fn')\n".repeat(2),
                "{mode:?}"
            );
        }
    });
}

/// Returns the command-line client with this password.
fn cli_command(fixture: &AdapterFixture, password: &str) -> Command {
    let mut cli = Command::new("mariadb");
    cli.args([
        "--no-defaults",
        "-h",
        &loopback_host(),
        "-P",
        &fixture.at.port().to_string(),
        "-ufn",
        &format!("-p{password}"),
        "-NB",
        "shop",
    ]);
    cli
}

#[test]
fn the_command_line_runs_unmodified_and_its_password_counts() {
    run_local(async {
        let server = need!(server::start_mariadb(&[]).await, "mariadbd");
        let fixture = open_with_client_login(&server, |it| it).await;
        for turn in 1..=3 {
            assert_eq!(
                run_program(
                    &mut cli_command(&fixture, "pw"),
                    "SELECT 1+1; SHOW TABLES; SELECT DATABASE();"
                )
                .await,
                "2\nvisits\nshop\n"
            );
            fixture.wait_served(2 * turn - 1).await;
            let wrong = program_output(&mut cli_command(&fixture, "wrong"), "SELECT 1;").await;
            assert!(
                String::from_utf8_lossy(&wrong.stderr)
                    .contains("ERROR 1045 (28000): Access denied"),
                "{wrong:?}"
            );
            fixture.wait_served(2 * turn).await;
        }
        let free = open_with_node_login(&server, |it| it).await;
        for turn in 1..=5 {
            assert_eq!(
                run_program(&mut cli_command(&free, "ignored"), "SELECT CURRENT_USER();").await,
                "fn@%\n"
            );
            free.wait_served(turn).await;
        }
        assert_eq!(free.backends.opened(), 1);
    });
}

#[test]
fn a_refused_login_of_the_node_is_told_as_such_and_logged() {
    run_local(async {
        let server = need!(server::start_mariadb(&[]).await, "mariadbd");
        let egress = EgressSpec {
            login: node_login("fn"),
            ..default_egress(EgressProtocol::Mysql, server.at)
        };
        let fixture = AdapterFixture::open(egress, &[("password", "outdated")]).await;
        let refused = program_output(&mut cli_command(&fixture, "pw"), "SELECT 1;").await;
        let text = String::from_utf8_lossy(&refused.stderr);
        assert!(
            text.contains("1045") && text.contains("the login of nearpath as \"fn\""),
            "{text}"
        );
        let log = fixture.log.borrow();
        assert!(
            matches!(log.as_slice(), [line] if line.contains("Access denied")),
            "{log:?}"
        );
    });
}

const MANY_CLIENTS_SCRIPT: &str = r#"
import sys, threading, pymysql
host, port = sys.argv[1], int(sys.argv[2])
def one(i):
    for turn in range(3):
        c = pymysql.connect(host=host, port=port, user="fn", password="pw", database="shop")
        k = c.cursor(); k.execute("SET @me = %s", (i,)); k.execute("SELECT @me"); assert k.fetchone()[0] == i
        k.execute("SELECT COUNT(*) FROM information_schema.processlist WHERE user = 'fn'"); n = k.fetchone()[0]; assert n <= 6, n
        c.close()
all = [threading.Thread(target=one, args=(i,)) for i in range(20)]
failed = []
threading.excepthook = lambda what: failed.append(what)
[t.start() for t in all]; [t.join() for t in all]
print("good" if not failed else repr(failed[0].exc_value))
"#;

#[test]
fn many_clients_never_exceed_max() {
    run_local(async {
        let server = need!(server::start_mariadb(&[]).await, "mariadbd");
        let python = need!(python().await, "Python with PyMySQL");
        // Sixty logins in turn: on a busy machine the last ones wait long.
        let few = |it| EgressSpec {
            max: 3,
            wait: Duration::from_secs(100),
            ..it
        };
        for fixture in [
            open_with_client_login(&server, few).await,
            open_with_node_login(&server, few).await,
        ] {
            assert_eq!(
                run_script(python, MANY_CLIENTS_SCRIPT, fixture.at).await,
                "good\n"
            );
            assert!(fixture.backends.max_open() <= 3);
        }
    });
}

#[test]
fn a_client_that_waits_too_long_gets_the_setting_to_change() {
    run_local(async {
        let server = need!(server::start_mariadb(&[]).await, "mariadbd");
        let short = |it| EgressSpec {
            max: 1,
            wait: Duration::from_millis(300),
            ..it
        };
        for fixture in [
            open_with_client_login(&server, short).await,
            open_with_node_login(&server, short).await,
        ] {
            let (mut holder, mut other) =
                (cli_command(&fixture, "pw"), cli_command(&fixture, "pw"));
            holder.arg("--unbuffered");
            let held = run_program(&mut holder, "DO SLEEP(3);");
            let tried = async {
                nearpath_testkit::eventually("the place is taken", async || {
                    fixture.backends.opened() == 1
                })
                .await;
                program_output(&mut other, "SELECT 1;").await
            };
            let (_, tried) = tokio::join!(held, tried);
            let received = String::from_utf8_lossy(&tried.stderr).into_owned();
            assert!(
                received.contains("1040") && received.contains("max="),
                "{received}"
            );
        }
    });
}

#[test]
fn a_server_that_restarts_hangs_up_or_is_full_costs_no_error_of_ours() {
    run_local(async {
        let mut server = need!(
            server::start_mariadb(&["--wait-timeout=1"]).await,
            "mariadbd"
        );
        for mode in 0..2 {
            let fixture = if mode == 0 {
                open_with_client_login(&server, |it| it).await
            } else {
                open_with_node_login(&server, |it| it).await
            };
            assert_eq!(
                run_program(&mut cli_command(&fixture, "pw"), "SELECT 1;").await,
                "1\n"
            );
            fixture.wait_served(1).await;
            // The server closes connections that are idle for a second.
            nearpath_testkit::eventually("the server has hung up", async || {
                let mut admin = Command::new("mariadb");
                admin
                    .args(["--no-defaults", "-uroot", "-NB", "-S"])
                    .arg(server.folder.path().join("socket"));
                run_program(
                    &mut admin,
                    "SELECT COUNT(*) FROM information_schema.processlist WHERE user = 'fn';",
                )
                .await
                    == "0\n"
            })
            .await;
            assert_eq!(
                run_program(&mut cli_command(&fixture, "pw"), "SELECT 2;").await,
                "2\n"
            );
            server.stop().await;
            let down = program_output(&mut cli_command(&fixture, "pw"), "SELECT 3;").await;
            let received = String::from_utf8_lossy(&down.stderr).into_owned();
            assert!(
                received.contains("1429") && received.contains("refused"),
                "{received}"
            );
            server.restart().await;
            assert_eq!(
                run_program(&mut cli_command(&fixture, "pw"), "SELECT 4;").await,
                "4\n"
            );
        }
    });
}

#[test]
fn the_error_of_a_full_server_reaches_the_client() {
    run_local(async {
        // The server's minimum; one more connection is reserved for its administrator.
        let server = need!(
            server::start_mariadb(&["--max-connections=10"]).await,
            "mariadbd"
        );
        let mut holders = Vec::new();
        nearpath_testkit::eventually("the server is full", async || {
            let mut holder = TcpStream::connect(server.at).await.unwrap();
            let mut received = [0; 128];
            let read = holder.read(&mut received).await.unwrap();
            holders.push(holder);
            received[..read]
                .windows(3)
                .any(|part| part == [0xff, 0x10, 0x04])
        })
        .await;
        let fixture = open_with_client_login(&server, |it| it).await;
        let tried = program_output(&mut cli_command(&fixture, "pw"), "SELECT 1;").await;
        let received = String::from_utf8_lossy(&tried.stderr).into_owned();
        assert!(
            received.contains("1040")
                && received.contains("Too many connections")
                && !received.contains("max="),
            "{received}"
        );
    });
}

const TRANSACTIONS_SCRIPT: &str = r#"
import sys, pymysql
host, port = sys.argv[1], int(sys.argv[2])
def connect(**more): return pymysql.connect(host=host, port=port, user="x", password="x", database="shop", connect_timeout=5, read_timeout=5, **more)
all = [connect(charset="utf8mb4"), connect(autocommit=True), connect()]
for turn in range(5):
    for at, c in enumerate(all):
        k = c.cursor()
        k.execute("UPDATE visits SET who = 'x' WHERE id = 0"); k.execute("SELECT @@autocommit, %s", (at,))
        assert k.fetchone() == (int(at == 1), at), "another's settings"
        c.commit()
    c = connect(); c.cursor().execute("SELECT 1"); c.close()
# An open transaction is its client's: no other client gets in.
k = all[0].cursor(); k.execute("SELECT COUNT(*) FROM visits")
try: all[1].cursor().execute("SELECT 1"); raise SystemExit("got in")
except pymysql.err.OperationalError as e: assert e.args[0] == 1040, e
all[0].rollback()
# So is what a client leaves that cannot follow it.
k.execute("SET @a = 5"); all[0].commit(); k.execute("SELECT @a"); assert k.fetchone() == (5,); all[0].close()
c = connect(); k = c.cursor(); k.execute("SELECT @a, @@autocommit"); assert k.fetchone() == (None, 0); c.close()
print("good")
"#;

#[test]
fn in_mode_transaction_clients_take_turns_on_one_connection() {
    run_local(async {
        let server = need!(server::start_mariadb(&[]).await, "mariadbd");
        let python = need!(python().await, "Python with PyMySQL");
        let wait = Duration::from_secs(2);
        let fixture = open_with_node_login(&server, |it| EgressSpec {
            mode: PoolingMode::Transaction,
            max: 1,
            wait,
            ..it
        })
        .await;
        assert_eq!(
            run_script(python, TRANSACTIONS_SCRIPT, fixture.at).await,
            "good\n"
        );
        assert_eq!(fixture.pin_reasons(), ["SET", "a variable"]);
    });
}

#[test]
fn settings_that_the_server_accepted_cost_the_next_client_nothing() {
    run_local(async {
        let server = need!(server::start_mariadb(&[]).await, "mariadbd");
        let python = need!(python().await, "Python with PyMySQL");
        let fixture = open_with_node_login(&server, |it| it).await;
        let connect = "import sys, pymysql\npymysql.connect(host=sys.argv[1], port=int(sys.argv[2]), user='x', password='x', database='shop').close()\nprint('good')";
        for turn in 1..=3 {
            let before = fixture.ledger.sent_bytes.get();
            assert_eq!(run_script(python, connect, fixture.at).await, "good\n");
            fixture.wait_served(turn).await;
            assert_eq!(
                fixture.ledger.sent_bytes.get() == before,
                turn > 1,
                "turn {turn}"
            );
        }
    });
}

/// Returns a greeting of protocol 10 in a packet.
fn greeting_packet(version: usize) -> Vec<u8> {
    let mut payload = format!("\x0a9.0.{version}\0").into_bytes();
    // Connection id, salt, capabilities, character set and status (MySQL: Protocol::HandshakeV10).
    payload.extend_from_slice(b"\x01\0\0\0saltsalt\0\xff\xff\x2d\x02\0\xff\xff\x15");
    payload.extend_from_slice(b"\0\0\0\0\0\0\0\0\0\0saltsaltsalt\0mysql_native_password\0");
    let length = u8::try_from(payload.len()).unwrap();
    [&[length, 0, 0, 0][..], &payload].concat()
}

/// Reads the greeting's version, and leaves.
async fn greeted_version(at: SocketAddr) -> String {
    let mut client = TcpStream::connect(at).await.unwrap();
    let (mut head, mut text) = ([0; 5], Vec::new());
    client.read_exact(&mut head).await.unwrap();
    while let byte @ 1.. = client.read_u8().await.unwrap() {
        text.push(byte);
    }
    String::from_utf8(text).unwrap()
}

#[test]
fn an_upgraded_server_greets_the_next_client() {
    run_local(async {
        let server = ScriptedServer::start(async |mut connection| {
            let greeting = greeting_packet(connection.number);
            connection.stream.write_all(&greeting).await.ok()?;
            // Until the other side leaves.
            connection.read_head().await.map(drop)
        })
        .await;
        let egress = default_egress(EgressProtocol::Mysql, server.at);
        let fixture = AdapterFixture::open(egress, &[]).await;
        let first = greeted_version(fixture.at).await;
        fixture.wait_served(1).await;
        assert_ne!(greeted_version(fixture.at).await, first);
    });
}
