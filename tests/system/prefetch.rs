//! Work ahead of the function: cached responses, prefetched reads, and writes that end after the
//! function.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use http::Method;
use nearpath_testkit::{eventually, need_root, skip};
use rustix::process::{Pid, Signal, kill_process};

use crate::egress::{is_reset_error, run_code, runner_function};
use crate::external_server::{MACHINE_NAME, MACHINE_V4, TestRedis, on_own_machine};
use crate::shm::run_cli;
use crate::test_server::TestServer;

/// An HTTP/1.1 server that responds with `headers` and the number of the request.
struct CountingServer {
    port: u16,
    request_count: Arc<AtomicU32>,
}

impl CountingServer {
    fn start(headers: &'static str) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let (port, request_count) = (
            listener.local_addr().unwrap().port(),
            Arc::<AtomicU32>::default(),
        );
        let counter = Arc::clone(&request_count);
        thread::spawn(move || {
            for mut client in listener.incoming().map_while(Result::ok) {
                let counter = Arc::clone(&counter);
                thread::spawn(move || {
                    let lines = BufReader::new(client.try_clone().unwrap())
                        .lines()
                        .map_while(Result::ok);
                    for _ in lines.filter(|line| line.is_empty()) {
                        let body = format!("answer {}", counter.fetch_add(1, Ordering::SeqCst) + 1);
                        let head = format!(
                            "HTTP/1.1 200 OK\r\n{headers}Content-Length: {}\r\n\r\n{body}",
                            body.len()
                        );
                        // the client may have closed the connection
                        let _ = client.write_all(head.as_bytes());
                    }
                });
            }
        });
        Self {
            port,
            request_count,
        }
    }

    fn request_count(&self) -> u32 {
        self.request_count.load(Ordering::SeqCst)
    }
}

/// Starts a server that stores everything that it receives.
fn spawn_journal() -> (u16, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let (port, all) = (
        listener.local_addr().unwrap().port(),
        Arc::<Mutex<Vec<u8>>>::default(),
    );
    let kept = Arc::clone(&all);
    thread::spawn(move || {
        for mut client in listener.incoming().map_while(Result::ok) {
            let kept = Arc::clone(&kept);
            thread::spawn(move || {
                let mut reply = Vec::new();
                if client.read_to_end(&mut reply).is_ok() {
                    kept.lock().unwrap().extend(reply);
                }
            });
        }
    });
    (port, all)
}

/// Value from the row of a function's connections to the destination at a port.
pub(crate) fn pool_value(server: &TestServer, function: &str, port: u16, what: &str) -> u64 {
    let all = run_cli(server, &["pool", "ls", function]);
    let of_port = |one: &&serde_json::Value| {
        one["destination"]
            .as_str()
            .unwrap()
            .ends_with(&format!(":{port}"))
    };
    all.as_array().unwrap().iter().find(of_port).unwrap()[what]
        .as_u64()
        .unwrap()
}

#[tokio::test]
async fn the_example_is_answered_ahead_and_its_lines_arrive() {
    need_root!();
    on_own_machine();
    let (rates, (port, lines)) = (
        CountingServer::start("Cache-Control: max-age=600\r\n"),
        spawn_journal(),
    );
    let server = TestServer::start().await;
    let stack = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/ahead/stack.yml");
    let mut command = tokio::process::Command::new(nearpath_testkit::program("nearpath"));
    command
        .args(["deploy", "-f", stack])
        .env("OPENFAAS_URL", format!("http://{}", server.addr));
    command
        .env("RATES", format!("{MACHINE_NAME}:{}", rates.port))
        .env("JOURNAL", format!("{MACHINE_NAME}:{port}"));
    command
        .stdin(std::process::Stdio::null())
        .kill_on_drop(true);
    let deployed = nearpath_testkit::within(command.output()).await.unwrap();
    assert!(
        deployed.status.success(),
        "{}",
        String::from_utf8_lossy(&deployed.stderr)
    );
    for _ in 0..3 {
        let answer = server
            .send_request(Method::GET, "/function/rates", "")
            .await;
        assert_eq!(
            (answer.status().as_u16(), answer.body().as_ref()),
            (200, b"answer 1".as_ref()),
            "{}",
            server.log()
        );
    }
    assert_eq!(rates.request_count(), 1, "the rest was kept");
    eventually("the lines arrive", async || {
        lines.lock().unwrap().len() == 3 * "/ 8\n".len()
    })
    .await;
    let of = |port, what| pool_value(&server, "rates", port, what);
    assert_eq!(
        (
            of(rates.port, "prefetchUsed") + of(rates.port, "cacheHits") >= 2,
            of(port, "earlyWrites")
        ),
        (true, 3)
    );
}

#[tokio::test]
async fn a_call_has_its_reads_issued_before_its_code_asks() {
    need_root!();
    on_own_machine();
    let rates = CountingServer::start("");
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start_in(folder.path(), &[]).await;
    let egress = format!(
        "{MACHINE_NAME}:{} protocol=http prefetch=/rates",
        rates.port
    );
    server
        .deploy_ready(&runner_function(folder.path(), "goes", &egress))
        .await;
    let code = format!(
        "import urllib.request\nsaid = urllib.request.urlopen('http://{MACHINE_NAME}:{}/rates', timeout=20).read().decode()",
        rates.port
    );
    for turn in 1..=3 {
        assert_eq!(
            run_code(&server, "goes", &code).await,
            format!("answer {turn}"),
            "{}",
            server.log()
        );
        assert_eq!(rates.request_count(), turn);
    }
    assert_eq!(
        pool_value(&server, "goes", rates.port, "prefetchUsed"),
        2,
        "all but the first, which taught how"
    );
    assert_eq!(
        run_code(&server, "goes", "time.sleep(6)\nsaid = 'nothing'").await,
        "nothing"
    );
    eventually("unrequested data is dropped", async || {
        pool_value(&server, "goes", rates.port, "prefetchUnused") == 1
    })
    .await;
    server.scale("goes", 0).await;
    // While the old instance ends, prefetched requests may use its connections and end with them.
    eventually("it sleeps", async || {
        server.instance_pids("goes").await.is_empty()
    })
    .await;
    assert_eq!(
        run_code(&server, "goes", &code).await,
        "answer 5",
        "asked ahead for one that slept, too: {}",
        server.log()
    );
    assert_eq!(
        (
            rates.request_count(),
            pool_value(&server, "goes", rates.port, "prefetchUsed")
        ),
        (5, 3)
    );
}

#[tokio::test]
async fn what_a_function_wrote_arrives_though_it_was_killed() {
    need_root!();
    on_own_machine();
    let (port, all) = spawn_journal();
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start_in(folder.path(), &[]).await;
    server
        .deploy_ready(&runner_function(
            folder.path(),
            "goes",
            &format!("{MACHINE_NAME}:{port} writes=async warm=0"),
        ))
        .await;
    let code = format!(
        "s = socket.create_connection(('{MACHINE_NAME}', {port}), 20)\ns.sendall(b'x' * 500000)\nos.kill(os.getpid(), signal.SIGKILL)"
    );
    let _ = server
        .send_request(Method::POST, "/function/goes", code)
        .await;
    eventually("all of it arrives", async || {
        all.lock().unwrap().len() == 500_000
    })
    .await;
}

/// A server like [`spawn_journal`] that speaks TLS; `opens` lets it begin. Its certificate is its
/// own authority.
fn spawn_tls_journal(opens: mpsc::Receiver<()>) -> (u16, String, Arc<Mutex<Vec<u8>>>) {
    let rcgen::CertifiedKey { cert, signing_key } =
        rcgen::generate_simple_self_signed([MACHINE_NAME.to_owned()]).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let server = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap();
    let key = rustls::pki_types::PrivateKeyDer::try_from(signing_key.serialize_der()).unwrap();
    let server = server
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key)
        .unwrap();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let (port, all) = (
        listener.local_addr().unwrap().port(),
        Arc::<Mutex<Vec<u8>>>::default(),
    );
    let (server, kept) = (Arc::new(server), Arc::clone(&all));
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let _ = opens.recv(); // received once; then all connections are accepted
            let session = rustls::ServerConnection::new(Arc::clone(&server)).unwrap();
            let (mut reply, mut client) = (Vec::new(), rustls::StreamOwned::new(session, client));
            let read = client.read_to_end(&mut reply);
            kept.lock().unwrap().extend(reply);
            assert!(read.is_ok(), "TLS ends as it should: {read:?}");
        }
    });
    (port, cert.pem(), all)
}

#[tokio::test]
async fn what_a_function_wrote_arrives_through_tls_after_it_has_closed_or_was_killed() {
    need_root!();
    on_own_machine();
    let (open, opens) = mpsc::channel();
    let (port, ca, all) = spawn_tls_journal(opens);
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start_in(folder.path(), &[]).await;
    let secret = serde_json::json!({ "name": "ca", "value": ca }).to_string();
    assert!(
        server
            .send_request(Method::POST, "/system/secrets", secret)
            .await
            .status()
            .is_success()
    );
    let egress = format!(
        "{MACHINE_NAME}:{port} protocol=tcp tls=originate ca=secret:ca writes=async warm=0 flush=60s"
    );
    server
        .deploy_ready(&runner_function(folder.path(), "goes", &egress))
        .await;
    let write = |then: &str| {
        format!(
            "s = socket.create_connection(('{MACHINE_NAME}', {port}), 20)\ns.sendall(b'x' * 500000)\n{then}"
        )
    };
    assert_eq!(
        run_code(&server, "goes", &write("s.close()\nsaid = 'left'")).await,
        "left",
        "before TLS has begun"
    );
    open.send(()).unwrap();
    eventually("all of it arrives", async || {
        all.lock().unwrap().len() == 500_000
    })
    .await;
    let _ = server
        .send_request(
            Method::POST,
            "/function/goes",
            write("os.kill(os.getpid(), signal.SIGKILL)"),
        )
        .await;
    assert_eq!(all.lock().unwrap().len(), 500_000);
    open.send(()).unwrap();
    eventually("all of it arrives again", async || {
        all.lock().unwrap().len() == 1_000_000
    })
    .await;
    assert_eq!(pool_value(&server, "goes", port, "failedWrites"), 0);
}

#[tokio::test]
async fn what_did_not_arrive_is_reported_at_the_next_connection_and_in_the_log() {
    need_root!();
    on_own_machine();
    let port = TcpListener::bind((MACHINE_V4, 0))
        .unwrap()
        .local_addr()
        .unwrap()
        .port(); // the listener is closed
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start_in(folder.path(), &[]).await;
    for name in ["goes", "other"] {
        server
            .deploy_ready(&runner_function(
                folder.path(),
                name,
                &format!("{MACHINE_V4}:{port} writes=async warm=0 flush=1s"),
            ))
            .await;
    }
    let listener = TcpListener::bind((MACHINE_V4, port)).unwrap();
    let write = format!(
        "s = socket.create_connection(('{MACHINE_V4}', {port}), 20)\ns.sendall(b'x' * 800000)\ns.close()\nsaid = 'written'"
    );
    assert_eq!(run_code(&server, "goes", &write).await, "written");
    drop(listener); // not accepted, so its connection is reset
    eventually("it is known", async || {
        pool_value(&server, "goes", port, "failedWrites") == 1
    })
    .await;
    let (next, received) = (
        spawn_journal_on(port),
        format!(
            "s = socket.create_connection(('{MACHINE_V4}', {port}), 20)\ns.settimeout(20)\ns.sendall(b'a')\ns.shutdown(1)\nsaid = s.recv(1)"
        ),
    );
    assert_eq!(
        run_code(&server, "other", &received).await,
        "b''",
        "it belongs to this function only"
    );
    let reply = run_code(&server, "goes", &received).await;
    assert!(is_reset_error(&reply), "{reply}");
    assert_eq!(
        run_code(&server, "goes", &received).await,
        "b''",
        "it was told once"
    );
    drop(next);
    let log = server
        .send_request(Method::GET, "/system/logs?name=goes&tail=50", "")
        .await;
    let log = String::from_utf8_lossy(log.body()).into_owned();
    assert!(
        log.contains("acknowledged write to") && log.contains(" failed: "),
        "{log}"
    );
}

/// Starts a server that reads to the end and closes.
fn spawn_journal_on(port: u16) -> thread::JoinHandle<()> {
    let listener = TcpListener::bind((MACHINE_V4, port)).unwrap();
    thread::spawn(move || {
        for mut client in listener.incoming().map_while(Result::ok) {
            let _ = client.read_to_end(&mut Vec::new());
        }
    })
}

#[tokio::test]
async fn accepted_writes_are_delivered_before_the_node_ends() {
    need_root!();
    on_own_machine();
    let folder = tempfile::tempdir().unwrap();
    let Some(redis) = TestRedis::start(folder.path(), "pw").await else {
        skip!("redis-server is missing")
    };
    let mut server = TestServer::start_in(folder.path(), &[]).await;
    let egress = format!(
        "{MACHINE_V4}:{} protocol=redis writes=async flush=60s",
        redis.port
    );
    server
        .deploy_ready(&runner_function(folder.path(), "goes", &egress))
        .await;
    let mut order = redis.command_session();
    assert_eq!(order("CLIENT PAUSE 120000 WRITE"), "+OK\r\n");
    let code = format!(
        "s = socket.create_connection(('{MACHINE_V4}', {}), 20)\ns.sendall(b'AUTH pw\\r\\n')\ns.recv(9)\ns.sendall(b'SET k v\\r\\n')\nsaid = s.recv(9)",
        redis.port
    );
    assert_eq!(
        run_code(&server, "goes", &code).await,
        "b'+OK\\r\\n'",
        "{}",
        server.log()
    );
    assert_eq!(order("EXISTS k"), ":0\r\n");
    let instances = server.instance_pids("goes").await;
    kill_process(Pid::from_raw(server.pid() as i32).unwrap(), Signal::TERM).unwrap();
    let lives = |pid: &i32| Path::new(&format!("/proc/{pid}")).exists();
    eventually("no instance is left", async || !instances.iter().any(lives)).await;
    assert_eq!(order("EXISTS k"), ":0\r\n");
    assert_eq!(order("CLIENT UNPAUSE"), "+OK\r\n");
    assert!(server.wait_exit().await.success(), "{}", server.log());
    assert_eq!(order("EXISTS k"), ":1\r\n", "{}", server.log());
}
