//! Number of workers per process, and the cost of each.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use futures_util::SinkExt;
use futures_util::stream::{self, StreamExt};
use http::Request;
use nearpath_p2p::message::{RendezvousMessage, SignedToken, WorkerMessage};
use nearpath_p2p::ticket::{RendezvousKey, WorkerTicket};
use nearpath_rendezvous::{RateLimit, RendezvousLimits};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::{WebSocketStream, client_async};

use nearpath_testkit::p2p::rendezvous::{TestRendezvous, unix_seconds, worker_id};

/// Upper bound of memory per connection, in bytes, without TLS.
const MAX_CONNECTION_MEMORY_BYTES: usize = 12 * 1024;

type ScaleSocket = WebSocketStream<TcpStream>;

/// Rendezvous in a process of its own.
struct RendezvousProcess {
    child: Child,
    addr: String,
}

impl RendezvousProcess {
    fn start() -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "scale::a_process_that_takes_lines",
                "--ignored",
                "--nocapture",
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
        let addr = lines
            .map_while(Result::ok)
            .find_map(|line| Some(line.split_once("listens on ")?.1.to_owned()));
        Self {
            addr: addr.expect("the rendezvous says where it listens"),
            child,
        }
    }

    /// Returns the process's anonymous memory in bytes.
    fn anonymous_bytes(&self) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let kilobytes = status
            .lines()
            .find_map(|line| line.strip_prefix("RssAnon:"))
            .unwrap();
        kilobytes
            .trim()
            .trim_end_matches(" kB")
            .parse::<usize>()
            .unwrap()
            * 1024
    }
}

impl Drop for RendezvousProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn worker_name(at: usize) -> String {
    format!("w{at}")
}

fn worker_ticket(at: usize) -> SignedToken {
    WorkerTicket {
        worker: worker_id(&worker_name(at)),
        job: "scale".parse().unwrap(),
        leader: false,
        until: unix_seconds() + 3600,
    }
    .mint(&RendezvousKey::new([5; 32]))
}

async fn open_connection(addr: &str, at: usize) -> ScaleSocket {
    let request = Request::get(format!("ws://{addr}/v1/control"))
        .header("host", addr)
        .header("connection", "Upgrade")
        .header("upgrade", "websocket")
        .header("sec-websocket-version", "13")
        .header("sec-websocket-key", generate_key())
        .header("authorization", format!("Bearer {}", worker_ticket(at).0));
    let stream = TcpStream::connect(addr).await.unwrap();
    let (mut socket, _) = client_async(request.body(()).unwrap(), stream)
        .await
        .unwrap();
    assert!(matches!(
        next_message(&mut socket).await,
        RendezvousMessage::Welcome(_)
    ));
    socket
}

async fn next_message(socket: &mut ScaleSocket) -> RendezvousMessage {
    loop {
        if let Message::Text(text) = socket.next().await.unwrap().unwrap() {
            return serde_json::from_str(&text).unwrap();
        }
    }
}

/// Connects all workers; then every second one calls the next, all at once.
async fn connect_workers(count: usize) {
    let process = RendezvousProcess::start();
    let empty = process.anonymous_bytes();
    let begun = Instant::now();
    let connections = stream::iter(0..count)
        .map(|at| open_connection(&process.addr, at))
        .buffered(64);
    let mut connections: Vec<ScaleSocket> = connections.collect().await;
    let (full, connected) = (process.anonymous_bytes(), begun.elapsed());
    let each = (full - empty) / count;
    for (at, web) in connections.iter_mut().enumerate().step_by(2) {
        let message = WorkerMessage::Call {
            call: 1,
            peer: worker_id(&worker_name(at + 1)),
            about: String::new(),
            within: 0,
            hello: None,
        };
        web.send(Message::text(serde_json::to_string(&message).unwrap()))
            .await
            .unwrap();
    }
    for socket in &mut connections {
        assert!(matches!(
            next_message(socket).await,
            RendezvousMessage::Granted(_)
        ));
    }
    let paired = begun.elapsed() - connected;
    eprintln!(
        "{count} lines in {connected:?}, {each} bytes each; {} pairs in {paired:?}",
        count / 2
    );
    eprintln!(
        "with their sessions {} bytes each",
        (process.anonymous_bytes() - empty) / count
    );
    assert!(
        each < MAX_CONNECTION_MEMORY_BYTES,
        "{each} bytes a connection"
    );
}

#[tokio::test]
async fn a_thousand_workers_connect() {
    nearpath_testkit::within(connect_workers(1000)).await;
}

#[tokio::test]
#[ignore = "ten thousand lines: make test-rendezvous"]
async fn ten_thousand_workers_connect() {
    connect_workers(10_000).await;
}

#[test]
#[ignore = "a helper: run by the others"]
fn a_process_that_takes_lines() {
    let plenty = RateLimit {
        per_second: 1_000_000,
        burst: 1_000_000,
    };
    let fixture = TestRendezvous::start(RendezvousLimits {
        arrival_rate: plenty,
        ..RendezvousLimits::default()
    });
    println!("listens on {}", fixture.rendezvous.addr);
    std::io::stdout().flush().unwrap();
    let _ = std::io::stdin().read_line(&mut String::new()); // ends with the parent process
}
