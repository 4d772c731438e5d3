//! State that one client of MariaDB leaves behind does not reach the next. The check is shown to
//! fail without cleaning.

use std::io;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use crate::clients::{python, run_script};
use crate::fixture::{AdapterFixture, default_egress, run_local};
use crate::mysql::{open_with_client_login, open_with_node_login};
use crate::redis::need;
use crate::server;

use nearpath_dbproxy::ClientContext;
use nearpath_types::egress::{EgressProtocol, EgressSpec, PoolingMode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Mutex;

/// Clients that leave at bad moments; after each, a client that prints what it sees. Prints the
/// leaks.
const TENANTS_SCRIPT: &str = r#"
import sys, random, socket, struct, time, pymysql
host, port = sys.argv[1], int(sys.argv[2])
def connect(): return pymysql.connect(host=host, port=port, user="fn", password="pw", database="shop", connect_timeout=5, read_timeout=5)
def raw(c, command, text): c._sock.sendall(struct.pack("<I", len(text) + 1)[:3] + b"\0" + bytes([command]) + text)
mischief = [
    lambda c, k: k.execute("SET SESSION sql_mode='ANSI_QUOTES', time_zone='+05:00'"),
    lambda c, k: k.execute("SET @leaked = 1"),
    lambda c, k: k.execute("SET NAMES latin1"),
    lambda c, k: k.execute("USE other"),
    lambda c, k: k.execute("CREATE TEMPORARY TABLE visits (leaked INT)"),
    lambda c, k: (k.execute("BEGIN"), k.execute("INSERT INTO visits (who) VALUES ('leaked')")),
    lambda c, k: k.execute("LOCK TABLES visits WRITE"),
    lambda c, k: k.execute("SELECT GET_LOCK('leaked', 5)"),
    lambda c, k: k.execute("PREPARE leaked FROM 'SELECT 1'"),
    lambda c, k: k.execute("HANDLER visits OPEN"),
    lambda c, k: k.execute("SET autocommit = 0"),
    lambda c, k: k.execute("SET SESSION TRANSACTION READ ONLY"),
    lambda c, k: raw(c, 3, b"SELECT REPEAT('leaked', 100000) FROM seq_1_to_50"),
    lambda c, k: raw(c, 3, b"SELECT 'leaked'"),
    lambda c, k: raw(c, 3, b"DO SLEEP(0.05)"),
    lambda c, k: c._sock.sendall(b"\xff\x00\x00\x00\x03SELECT 'half of it"),
    lambda c, k: (raw(c, 3, b"SELECT 'leaked'"), raw(c, 3, b"SELECT 'leaked'")),
]
see = """SELECT @@sql_mode = @@GLOBAL.sql_mode, @@time_zone = @@GLOBAL.time_zone, @leaked IS NULL, @@character_set_client, DATABASE(), @@autocommit,
  IS_FREE_LOCK('leaked'), @@tx_read_only, (SELECT COUNT(*) FROM visits WHERE who = 'leaked')"""
clean = (0, 1, 1, 1, "utf8mb4", "shop", 0, 1, 0, 0)
leaks = 0
for seed in range(SEEDS):
    dice = random.Random(seed)
    done = None
    try:
        c = connect(); k = c.cursor(); sock = c._sock
        done = dice.sample(range(len(mischief)), dice.randint(1, 3))
        try:
            for what in done: mischief[what](c, k)
        except pymysql.err.Error: pass
        if dice.random() < 0.5 and c._sock: sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if dice.random() < 0.5:
            try: sock.settimeout(0); sock.recv(dice.randint(1, 5000))
            except OSError: pass
        if c._rfile: c._rfile.close()
        sock.close()
        time.sleep(0.01)
        c = connect(); k = c.cursor(); k.execute("SELECT @@in_transaction"); seen = k.fetchone(); k.execute(see); seen += k.fetchone(); c.close()
        try: c = connect(); c.cursor().execute("EXECUTE leaked"); seen = "a prepared statement"
        except pymysql.err.OperationalError as e:
            if e.args[0] != 1243: seen = e
        c.close()
    except (pymysql.err.Error, OSError, AttributeError, struct.error, IndexError) as e: seen = e
    if seen != clean: leaks += 1; print(f"seed {seed}: after {done} the next one saw {seen!r}")
print("leaks:", leaks)
"#;

async fn leaks_of(python: &Path, fixture: &AdapterFixture, seeds: u32) -> String {
    run_script(
        python,
        &TENANTS_SCRIPT.replace("SEEDS", &seeds.to_string()),
        fixture.at,
    )
    .await
}

#[test]
fn the_next_client_sees_nothing_of_the_previous() {
    run_local(async {
        let server = need!(server::start_mariadb(&[]).await, "mariadbd");
        let python = need!(python().await, "Python with PyMySQL");
        let one = |it| EgressSpec { max: 1, ..it };
        for fixture in [
            open_with_client_login(&server, one).await,
            open_with_node_login(&server, one).await,
        ] {
            assert_eq!(leaks_of(python, &fixture, 50).await, "leaks: 0\n");
            assert!(
                fixture.ledger.resets.get() > 50,
                "nothing was cleaned: the test proves nothing"
            );
            assert!(
                fixture.backends.opened() < 75,
                "hardly anything was used again: the test proves nothing"
            );
        }
    });
}

/// A client that sends empty packets, and bytes that look like the beginning of a statement.
const EMPTY_PACKETS_SCRIPT: &str = r#"
import sys, pymysql
for odd in (b"\0\0\0\0\x03\0\0\0", b"\0\0\0\0\x01\0\0\0\x0e", b"\0\0\0\0" * 3 + b"\x03"):
    c = pymysql.connect(host=sys.argv[1], port=int(sys.argv[2]), user="fn", password="pw", database="shop", read_timeout=5)
    c._sock.sendall(odd)
    c._sock.settimeout(1)
    try: c._sock.recv(1000)
    except OSError: pass
    c._sock.close()
c = pymysql.connect(host=sys.argv[1], port=int(sys.argv[2]), user="fn", password="pw", database="shop", read_timeout=5)
k = c.cursor(); k.execute("SELECT 7"); print(k.fetchone()); c.close()
"#;

#[test]
fn an_empty_packet_does_no_harm() {
    run_local(async {
        let server = need!(server::start_mariadb(&[]).await, "mariadbd");
        let python = need!(python().await, "Python with PyMySQL");
        let fixture = open_with_node_login(&server, |it| EgressSpec {
            max: 1,
            mode: PoolingMode::Transaction,
            ..it
        })
        .await;
        assert_eq!(
            run_script(python, EMPTY_PACKETS_SCRIPT, fixture.at).await,
            "(7,)\n"
        );
        fixture.wait_served(4).await;
    });
}

/// A connection that is logged in, and what the server sent until then.
struct LoggedInConnection {
    stream: TcpStream,
    greeting: Vec<u8>,
    ok_packet: Vec<u8>,
}

/// Reads the available bytes.
async fn read_available(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    stream.read_buf(&mut bytes).await?;
    Ok(bytes)
}

/// Starts a connection that is logged in and that the client takes for its own.
async fn begin_connection(
    client: &mut TcpStream,
    context: &ClientContext,
    used: Option<LoggedInConnection>,
) -> io::Result<LoggedInConnection> {
    if let Some(used) = used {
        client.write_all(&used.greeting).await?;
        read_available(client).await?;
        client.write_all(&used.ok_packet).await?;
        return Ok(used);
    }
    let mut stream =
        TcpStream::connect(("127.0.0.1", context.upstream.destination.egress.port)).await?;
    let greeting = read_available(&mut stream).await?;
    client.write_all(&greeting).await?;
    stream.write_all(&read_available(client).await?).await?;
    let welcome = read_available(&mut stream).await?;
    client.write_all(&welcome).await?;
    Ok(LoggedInConnection {
        stream,
        greeting,
        ok_packet: welcome,
    })
}

/// The adapter without its cleaning: the next client continues where the previous one stopped.
async fn serve_uncleaned(
    mut client: TcpStream,
    context: ClientContext,
    only: Rc<Mutex<Option<LoggedInConnection>>>,
) -> io::Result<()> {
    let mut only = only.lock().await;
    let mut used = begin_connection(&mut client, &context, only.take()).await?;
    loop {
        let (mut ours, mut theirs) = ([0; 4096], [0; 4096]);
        tokio::select! {
            read = client.read(&mut ours) => match read {
                Ok(read) if read > 0 && ours[..read] != [1, 0, 0, 0, 1] => used.stream.write_all(&ours[..read]).await?,
                _ => break,
            },
            read = used.stream.read(&mut theirs) => {
                let read = read?;
                if read == 0 || client.write_all(&theirs[..read]).await.is_err() {
                    break;
                }
            }
            () = tokio::time::sleep(Duration::from_millis(200)) => break,
        }
    }
    *only = Some(used);
    Ok(())
}

#[test]
fn without_cleaning_the_check_fails() {
    run_local(async {
        let server = need!(server::start_mariadb(&[]).await, "mariadbd");
        let python = need!(python().await, "Python with PyMySQL");
        let only = Rc::default();
        let adapter = move |client, context| serve_uncleaned(client, context, Rc::clone(&only));
        let fixture = AdapterFixture::open_with(
            default_egress(EgressProtocol::Mysql, server.at),
            &[],
            adapter,
        )
        .await;
        // Few seeds: a client that gets another client's bytes waits long for its own.
        let received = leaks_of(python, &fixture, 5).await;
        assert!(!received.contains("leaks: 0\n"), "{received}");
    });
}
