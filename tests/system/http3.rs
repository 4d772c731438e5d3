//! HTTP/3 with two independent clients, see `tests/interop/h3`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use nearpath_testkit::{eventually, free_addr};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tokio::process::Command;

use crate::test_server::{TestServer, http_function};

/// Describes the request, and returns a large body.
const DESCRIBE_BODY: &str = r#"early = self.headers.get("Early-Data", "0")
told = f"early={early} {self.command} {length}".encode()
self.answer(200, body if length > 1000 else told)"#;

/// Expected output of each client.
const WANTED_TESTS: &str = "\
get: 200 early=0 GET 0
post: 200 1048576 bytes
early get: 200 early=1 GET 0
get again: 200 early=0 GET 0
early post: 425
post again: 200 early=0 POST 4
";

/// Starts a server with TLS; returns it with its address and the file of its authority.
pub(crate) async fn start_http3_server(
    folder: &Path,
    options: &[&str],
) -> (TestServer, SocketAddr, PathBuf) {
    let at = |name: &str| folder.join(name);
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params
        .distinguished_name
        // OpenSSL distinguishes authorities by name
        .push(DnType::CommonName, "an authority of tests");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let leaf = CertificateParams::new(vec!["localhost".to_owned()])
        .unwrap()
        .signed_by(&key, &authority)
        .unwrap();
    std::fs::write(at("ca.pem"), authority.pem()).unwrap();
    std::fs::write(at("cert.pem"), leaf.pem()).unwrap();
    std::fs::write(at("key.pem"), key.serialize_pem()).unwrap();
    let mut ports = std::iter::repeat_with(free_addr);
    let listen = ports
        .find(|addr| std::net::UdpSocket::bind(addr).is_ok())
        .unwrap(); // free for UDP, too
    let (cert, key) = (at("cert.pem"), at("key.pem"));
    let tls = [
        "--tls-cert",
        cert.to_str().unwrap(),
        "--tls-key",
        key.to_str().unwrap(),
    ];
    let at_port = listen.to_string();
    let options = [&tls[..], &["--tls-listen", &at_port], options].concat();
    let server = TestServer::start_in(&at("data"), &options).await;
    (server, listen, at("ca.pem"))
}

/// A network path with delay. On loopback a handshake may complete before a client has sent its
/// early data.
pub(crate) mod distance {
    use std::collections::HashMap;
    use std::collections::hash_map::Entry;
    use std::net::{Ipv4Addr, SocketAddr};
    use std::sync::Arc;
    use std::time::Duration;

    use tokio::net::UdpSocket;
    use tokio::sync::mpsc;
    use tokio::time::Instant;

    /// One-way delay.
    const DELAY: Duration = Duration::from_millis(20);

    async fn bind_udp() -> Arc<UdpSocket> {
        Arc::new(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap())
    }

    /// Address that forwards datagrams to `to` with a delay.
    pub(crate) async fn delayed_address(to: SocketAddr) -> SocketAddr {
        let near = bind_udp().await;
        let at = near.local_addr().unwrap();
        tokio::spawn(async move {
            let (mut clients, mut buffer) = (HashMap::new(), [0; 2048]);
            while let Ok((length, from)) = near.recv_from(&mut buffer).await {
                let client = match clients.entry(from) {
                    Entry::Occupied(known) => known.into_mut(),
                    Entry::Vacant(new) => new.insert(client(&near, from, to).await),
                };
                let _ = client.send((Instant::now() + DELAY, buffer[..length].to_vec()));
            }
        });
        at
    }

    type DelayedSender = mpsc::UnboundedSender<(Instant, Vec<u8>)>;

    async fn client(near: &Arc<UdpSocket>, from: SocketAddr, to: SocketAddr) -> DelayedSender {
        let far = bind_udp().await;
        let (there, back) = (
            delay_datagrams(far.clone(), to),
            delay_datagrams(near.clone(), from),
        );
        tokio::spawn(async move {
            let mut buffer = [0; 2048];
            while let Ok(length) = far.recv(&mut buffer).await {
                let _ = back.send((Instant::now() + DELAY, buffer[..length].to_vec()));
            }
        });
        there
    }

    /// Sends each datagram at its time.
    fn delay_datagrams(socket: Arc<UdpSocket>, to: SocketAddr) -> DelayedSender {
        let (send, mut receive) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
        tokio::spawn(async move {
            while let Some((when, datagram)) = receive.recv().await {
                tokio::time::sleep_until(when).await;
                let _ = socket.send_to(&datagram, to).await; // datagrams may be lost
            }
        });
        send
    }
}

/// Runs a client and compares its output.
async fn run_interop(mut client: Command) {
    let folder = tempfile::Builder::new()
        .prefix("nearpath-test-")
        .tempdir()
        .unwrap();
    let (server, listen, authority) = start_http3_server(folder.path(), &[]).await;
    server
        .deploy_ready(&http_function(&server.data_dir, "tell", DESCRIBE_BODY))
        .await;
    let far = distance::delayed_address(listen).await;
    client
        .args([far.ip().to_string(), far.port().to_string()])
        .arg(authority);
    let Output { stdout, stderr, .. } = output(client).await.unwrap();
    let (reply, errors) = (
        String::from_utf8_lossy(&stdout),
        String::from_utf8_lossy(&stderr),
    );
    assert_eq!(reply, WANTED_TESTS, "{errors}\n{}", server.log());
}

async fn output(mut command: Command) -> std::io::Result<Output> {
    command.stdin(Stdio::null()).kill_on_drop(true);
    tokio::time::timeout(Duration::from_secs(240), command.output())
        .await
        .expect("it ends within four minutes")
}

fn interop_folder(client: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("interop/h3")
        .join(client)
}

/// Runs a tool. Returns true if it exists and succeeded.
async fn run_to_end(tool: &str, folder: &Path, arguments: &[&str]) -> bool {
    let mut command = Command::new(tool);
    command.args(arguments).current_dir(folder);
    output(command)
        .await
        .is_ok_and(|output| output.status.success())
}

/// Returns true if a process has bound this UDP address.
fn is_served(at: SocketAddr) -> bool {
    std::net::UdpSocket::bind(at).is_err()
}

#[tokio::test]
async fn it_can_be_left_out() {
    for (options, served) in [(&[][..], true), (&["--http3", "off"], false)] {
        let folder = tempfile::Builder::new()
            .prefix("nearpath-test-")
            .tempdir()
            .unwrap();
        let (server, listen, _) = start_http3_server(folder.path(), options).await;
        eventually("all of it is up", async || server.log().contains("is up")).await;
        assert_eq!(is_served(listen), served, "{options:?}\n{}", server.log());
    }
}

#[tokio::test]
async fn aioquic() {
    nearpath_testkit::need_root!();
    let (home_dir, venv) = (
        interop_folder("aioquic"),
        Path::new(env!("CARGO_TARGET_TMPDIR")).join("aioquic"),
    );
    let python = venv.join("bin/python");
    let python = python.to_str().unwrap();
    if !run_to_end(python, &home_dir, &["-c", "import aioquic"]).await {
        let made = run_to_end(
            "python3",
            &home_dir,
            &["-m", "venv", venv.to_str().unwrap()],
        )
        .await;
        if !made
            || !run_to_end(
                python,
                &home_dir,
                &["-m", "pip", "install", "-q", "-r", "requirements.txt"],
            )
            .await
        {
            nearpath_testkit::skip!(
                "no aioquic: python3-venv is missing, or the package index cannot be reached"
            );
        }
    }
    let mut client = Command::new(python);
    client.arg(home_dir.join("client.py"));
    run_interop(client).await;
}

#[tokio::test]
async fn quic_go() {
    nearpath_testkit::need_root!();
    let (home_dir, program) = (
        interop_folder("quic-go"),
        Path::new(env!("CARGO_TARGET_TMPDIR")).join("quic-go"),
    );
    if !run_to_end("go", &home_dir, &["mod", "download"]).await {
        nearpath_testkit::skip!("no quic-go: Go is missing, or its modules cannot be reached");
    }
    assert!(
        run_to_end(
            "go",
            &home_dir,
            &["build", "-o", program.to_str().unwrap(), "."]
        )
        .await,
        "it does not compile"
    );
    run_interop(Command::new(program)).await;
}
