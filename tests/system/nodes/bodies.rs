//! Streams, upgraded connections and long bodies cross nodes whole, and memory stays bounded.

use std::convert::Infallible;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use nearpath_testkit::{need_root, skip, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::functions::function_entry;
use super::machines::Machines;
use crate::grpc::GrpcExample;

const MIB: usize = 1 << 20;
/// Growth of a node's memory that an upload may cause: buffers of both connections.
const MAX_GROWTH: usize = 48 * MIB;

/// Handler that checks uploads, and answers upgraded connections with what they send.
const BODY_HANDLER: &str = r#"import base64, hashlib, http.server, time, zlib
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", accept)
        self.end_headers()
        while data := self.connection.recv(65536):
            self.connection.sendall(data)
        self.close_connection = True
    def do_POST(self):
        time.sleep(float(self.path.rpartition("/")[2] or 0))
        size, checksum, left = 0, 1, int(self.headers["Content-Length"])
        while left and (part := self.rfile.read(min(left, 65536))):
            size, left, checksum = size + len(part), left - len(part), zlib.adler32(part, checksum)
        text = f"{size} {checksum}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)
    def log_message(self, *args):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", 5000), Handler).serve_forever()
"#;

async fn start_nodes() -> Machines {
    let mut machines = Machines::new(&["a", "b"]);
    machines.write("task/server.py", BODY_HANDLER);
    let more = "nodes: [b], annotations: {nearpath.io/total-timeout: 10m},";
    let function = function_entry("task", "./task", more);
    machines.write("stack.yml", &format!("functions:\n{function}"));
    machines.start_all().await;
    machines.wait_instance(1).await;
    machines
}

/// Adler-32 (RFC 1950 section 8.2).
#[derive(Clone, Copy)]
struct Adler32(u32, u32);

impl Adler32 {
    fn add(&mut self, bytes: &[u8]) {
        // At most as many bytes as 32-bit sums hold, as in zlib.
        for part in bytes.chunks(5552) {
            for byte in part {
                self.0 += u32::from(*byte);
                self.1 += self.0;
            }
            (self.0, self.1) = (self.0 % 65521, self.1 % 65521);
        }
    }

    fn value(self) -> u32 {
        self.1 << 16 | self.0
    }
}

fn block(number: usize) -> Bytes {
    let seed = number as u32;
    (0..MIB as u32 / 4)
        .flat_map(|at| (at.wrapping_mul(2_654_435_761) ^ seed).to_le_bytes())
        .collect()
}

/// Uploads this many MiB to a gateway; `sent` counts the blocks that were taken.
async fn upload(
    machines: &Machines,
    (mib, path): (usize, &str),
    sent: Arc<AtomicUsize>,
) -> (StatusCode, String) {
    let blocks = stream::iter((0..mib).map(move |number| {
        sent.store(number, Ordering::SeqCst);
        Ok::<_, Infallible>(Frame::data(block(number)))
    }));
    let request = Request::post(path)
        .header("host", "test")
        .header("content-length", mib * MIB)
        .body(StreamBody::new(blocks))
        .unwrap();
    let stream = TcpStream::connect(machines.machines[0].gateway()).await;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream.unwrap()))
        .await
        .unwrap();
    let driver = tokio::spawn(connection);
    let (head, body) = sender.send_request(request).await.unwrap().into_parts();
    let text = body.collect().await.unwrap().to_bytes();
    driver.abort();
    (head.status, String::from_utf8(text.to_vec()).unwrap())
}

/// Growth of the resident memory of a process since this was created.
struct MemoryPeak {
    pid: u32,
    before: usize,
}

impl MemoryPeak {
    fn start(pid: u32) -> Self {
        // The peak begins again at what is resident now (proc_pid_clear_refs(5)).
        std::fs::write(format!("/proc/{pid}/clear_refs"), "5").unwrap();
        let before = Self::read(pid);
        Self { pid, before }
    }

    /// Maximum of resident memory in bytes.
    fn read(pid: u32) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = peak.unwrap().trim().trim_end_matches(" kB");
        kib.parse::<usize>().unwrap() * 1024
    }

    fn growth(&self) -> usize {
        Self::read(self.pid).saturating_sub(self.before)
    }
}

/// Control: memory that a process holds is seen.
#[test]
fn control_memory_of_a_whole_body_is_seen() {
    need_root!();
    let peak = MemoryPeak::start(std::process::id());
    let body: Vec<Bytes> = (0..64).map(block).collect();
    assert!(peak.growth() > MAX_GROWTH);
    drop(body);
}

async fn upload_whole(mib: usize) {
    let machines = start_nodes().await;
    upload(&machines, (1, "/function/task"), Arc::default()).await;
    let peaks = [0, 1].map(|at| MemoryPeak::start(machines.server(at).pid()));
    let answered = upload(&machines, (mib, "/function/task/1"), Arc::default()).await;
    let mut checksum = Adler32(1, 0);
    (0..mib).for_each(|number| checksum.add(&block(number)));
    let expected = format!("{} {}", mib * MIB, checksum.value());
    assert_eq!(answered, (StatusCode::OK, expected), "{}", machines.logs());
    let growth = peaks.map(|peak| peak.growth());
    eprintln!("{mib} MiB: the nodes grew by {growth:?} bytes");
    assert!(growth.iter().all(|one| *one <= MAX_GROWTH), "{growth:?}");
}

#[tokio::test]
async fn an_upload_crosses_nodes_whole_in_bounded_memory() {
    need_root!();
    upload_whole(64).await;
}

#[tokio::test]
#[ignore = "uploads a gigabyte: make test-nodes"]
async fn an_upload_of_a_gigabyte_crosses_nodes_whole_in_bounded_memory() {
    need_root!();
    upload_whole(1024).await;
}

/// The function reads nothing for a while: the client cannot send all meanwhile. Control: it can when
/// the function reads.
#[tokio::test]
async fn back_pressure_reaches_the_client() {
    need_root!();
    let machines = start_nodes().await;
    // The control needs its time on a busy machine, and ends with the upload.
    let (held, free) = (Duration::from_secs(15), Duration::from_secs(120));
    let cases = [
        ("/function/task/20", true, held),
        ("/function/task/0", false, free),
    ];
    for (path, is_held, limit) in cases {
        let sent = Arc::<AtomicUsize>::default();
        let uploading = upload(&machines, (128, path), sent.clone());
        let ended = tokio::time::timeout(limit, uploading).await;
        let sent = sent.load(Ordering::SeqCst);
        assert_eq!(ended.is_err(), is_held, "{path}: {sent} MiB were sent");
        assert_eq!(sent < 64, is_held, "{path}: {sent} MiB were sent");
    }
}

#[tokio::test]
async fn a_websocket_crosses_nodes_whole() {
    need_root!();
    let machines = start_nodes().await;
    let mut stream = TcpStream::connect(machines.machines[0].gateway())
        .await
        .unwrap();
    let request = "GET /function/task HTTP/1.1\r\nHost: test\r\nConnection: Upgrade\r\n\
                   Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                   Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(within(stream.read_u8()).await.unwrap());
    }
    let head = String::from_utf8(head).unwrap();
    assert!(
        head.starts_with("HTTP/1.1 101 "),
        "{head}\n{}",
        machines.logs()
    );
    // The value of RFC 6455 section 1.3.
    let accept = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";
    assert!(head.contains(accept), "{head}");
    let (mut read, mut write) = stream.into_split();
    let sent = block(7);
    let (sending, mut echoed) = (sent.clone(), vec![0; sent.len()]);
    let sender = tokio::spawn(async move { write.write_all(&sending).await.map(|()| write) });
    within(read.read_exact(&mut echoed)).await.unwrap();
    assert!(echoed == sent, "other bytes came back");
    drop(sender.await.unwrap().unwrap());
}

#[tokio::test]
async fn grpc_streams_cross_nodes_whole() {
    need_root!();
    let example = match GrpcExample::prepare_example().await {
        Ok(example) => example,
        Err(reason) => skip!("{reason}"),
    };
    let mut machines = Machines::new(&["a", "b"]);
    let copied = Command::new("cp")
        .arg("-r")
        .arg(example.0.join("handler"))
        .arg(machines.folder().join("source/handler"))
        .status();
    assert!(copied.unwrap().success());
    machines.write(
        "stack.yml",
        "functions:\n  words: {handler: ./handler, fprocess: python3 server.py, nodes: [b], environment: \
         {mode: http, upstream_url: \"http://127.0.0.1:5000\", upstream_protocol: h2c, \
         PYTHONPATH: /home/app/function/packages}}\n",
    );
    machines.start_all().await;
    machines.wait_instance(1).await;
    let gateway = machines.machines[0].gateway();
    let words: Vec<String> = (0..500).map(|number| format!("w{number}")).collect();
    let chat = format!("chat {}", words.join(" "));
    let answers: Vec<_> = words
        .iter()
        .map(|word| format!("text: {}", word.to_uppercase()))
        .collect();
    for (call, answer) in [
        (chat.as_str(), answers.join(", ")),
        (
            "count 3 --pause 0.2",
            "number: 1, number: 2, number: 3".to_owned(),
        ),
    ] {
        let reply = example.run_client_at(gateway, call).await;
        assert_eq!(reply, (answer, String::new()), "{}", machines.logs());
    }
}
