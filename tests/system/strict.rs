//! `isolation: strict` from outside: endpoints read each other's memory and cannot write it.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;

use http::Method;
use nearpath_testkit::{eventually, within};
use rustix::fs::{SealFlags, fcntl_get_seals};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::shm::{call_traced, chain_function, path_of, wait_in_memory};
use crate::test_server::{TestServer, http_function};

fn strict_function(server: &TestServer, name: &str, next: Option<&str>, calls: &str) -> Value {
    let mut spec = chain_function(server, name, next, calls);
    spec["annotations"]["nearpath.io/isolation"] = json!("strict");
    spec
}

async fn deploy_chain(server: &TestServer) {
    server
        .deploy_ready(&strict_function(server, "second", None, ""))
        .await;
    server
        .deploy_ready(&strict_function(server, "first", Some("second"), "second"))
        .await;
    wait_in_memory(server, "first").await;
    eventually("first knows second", async || {
        call_traced(server, "first").await.status() == 200
    })
    .await;
}

#[tokio::test]
async fn a_strict_chain_answers_through_memory() {
    nearpath_testkit::need_root!();
    let server = TestServer::start().await;
    deploy_chain(&server).await;
    for _ in 0..50 {
        let answer = call_traced(&server, "first").await;
        assert_eq!(
            (
                answer.status().as_u16(),
                path_of(&answer),
                answer.body().len()
            ),
            (200, "shm", 100)
        );
    }
    let mut open = chain_function(&server, "open", Some("second"), "second");
    open["annotations"]["nearpath.io/isolation"] = json!("shared");
    server.deploy_ready(&open).await;
    wait_in_memory(&server, "open").await;
    let answer = call_traced(&server, "open").await;
    assert_eq!(
        answer.status(),
        502,
        "its handler knows no other way, and the strict domain is not its own"
    );
    let mut wrong = chain_function(&server, "wrong", None, "");
    wrong["annotations"]["nearpath.io/isolation"] = json!("very");
    assert_eq!(
        server
            .send_request(Method::POST, "/system/functions", wrong.to_string())
            .await
            .status(),
        400
    );
}

/// Sends an event, and each further one on request.
const EVENTS_BODY: &str = r#"if self.path == "/go":
    go.set()
    self.answer(200, b"gone")
elif self.path == "/events":
    self.send_response(200)
    self.send_header("content-type", "text/event-stream")
    self.send_header("connection", "close")
    self.end_headers()
    self.wfile.write(b"data: 0\n\n")
    self.wfile.flush()
    go.wait(60)
    self.wfile.write(b"data: 1\n\n")
    self.close_connection = True
else:
    self.answer(200, b"here")"#;

/// Reads until the text was received.
async fn read_until(stream: &mut TcpStream, read: &mut String, text: &str) {
    while !read.contains(text) {
        let mut bytes = [0; 1024];
        let count = stream.read(&mut bytes).await.unwrap();
        assert!(count > 0, "no {text:?} in {read:?}");
        read.push_str(&String::from_utf8_lossy(&bytes[..count]));
    }
}

#[tokio::test]
async fn events_come_out_of_a_strict_chain_as_they_are_sent() {
    nearpath_testkit::need_root!();
    let server = TestServer::start().await;
    let mut source = http_function(&server.data_dir, "source", EVENTS_BODY);
    let script = server.data_dir.join("fn-source/server.py");
    let text = fs::read_to_string(&script).unwrap();
    fs::write(
        &script,
        format!("import threading\ngo = threading.Event()\n{text}"),
    )
    .unwrap();
    source["annotations"] =
        json!({ "nearpath.io/chain": "news", "nearpath.io/isolation": "strict" });
    source["envVars"]["log_callid"] = json!("true"); // what only the watchdog does keeps it in the path
    server.deploy_ready(&source).await;
    wait_in_memory(&server, "source").await;
    let mut stream = TcpStream::connect(server.addr).await.unwrap();
    let question =
        "GET /function/source/events HTTP/1.1\r\nhost: localhost\r\nx-nearpath-path: ?\r\n\r\n";
    stream.write_all(question.as_bytes()).await.unwrap();
    let mut read = String::new();
    within(read_until(&mut stream, &mut read, "data: 0")).await;
    assert!(read.contains("x-nearpath-path: shm"), "{read}");
    assert_eq!(
        server
            .send_request(Method::POST, "/function/source/go", "")
            .await
            .status(),
        200
    );
    within(read_until(&mut stream, &mut read, "data: 1")).await;
}

/// A pool that a process has mapped.
struct MappedPool {
    pid: i32,
    range: String,
    writable: bool,
}

impl MappedPool {
    /// Pools of strict endpoints that a process has mapped; see proc_pid_maps(5).
    fn of(pid: i32) -> Vec<Self> {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
        let pools = maps
            .lines()
            .filter(|line| line.contains("/memfd:nearpath-own"));
        let read = |line: &str| {
            let mut words = line.split_whitespace();
            let (range, rights) = (words.next().unwrap().to_owned(), words.next().unwrap());
            assert!(rights.ends_with('s') && rights.starts_with('r'), "{line}");
            Self {
                pid,
                range,
                writable: rights.contains('w'),
            }
        };
        pools.map(read).collect()
    }

    fn start_address(&self) -> u64 {
        u64::from_str_radix(self.range.split('-').next().unwrap(), 16).unwrap()
    }

    /// Overwrites a byte with itself like a debugger, whatever the page table says. A shared
    /// mapping that can never become writable refuses it (`mm/gup.c`, `check_vma_flags`).
    fn write_byte(&self) -> std::io::Result<usize> {
        let memory = OpenOptions::new()
            .read(true)
            .write(true)
            .open(format!("/proc/{}/mem", self.pid))?;
        let mut byte = [0];
        memory.read_exact_at(&mut byte, self.start_address())?;
        memory.write_at(&byte, self.start_address())
    }

    fn file(&self) -> File {
        let link = format!("/proc/{}/map_files/{}", self.pid, self.range);
        OpenOptions::new()
            .read(true)
            .write(true)
            .open(link)
            .unwrap()
    }
}

#[tokio::test]
async fn a_peers_pool_is_read_only_even_for_root() {
    nearpath_testkit::need_root!();
    let server = TestServer::start().await;
    deploy_chain(&server).await;
    let mut pools = Vec::new();
    for name in ["first", "second"] {
        let processes = server.instance_processes(name).await;
        pools.extend(processes.into_iter().flat_map(MappedPool::of));
    }
    let (own, peers): (Vec<_>, Vec<_>) = pools.into_iter().partition(|pool| pool.writable);
    assert!(
        own.len() >= 2 && peers.len() >= 3,
        "{} own, {} of peers",
        own.len(),
        peers.len()
    );
    for pool in &own {
        assert_eq!(
            pool.write_byte().unwrap(),
            1,
            "its maker writes there: the check below can succeed"
        );
    }
    for pool in &peers {
        assert!(
            pool.write_byte().is_err(),
            "written through a mapping for reading: {} of {}",
            pool.range,
            pool.pid
        );
    }
    for pool in own.iter().chain(&peers) {
        let file = pool.file();
        let wanted =
            SealFlags::FUTURE_WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        assert!(fcntl_get_seals(&file).unwrap().contains(wanted));
        assert!(file.write_at(&[0], 0).is_err() && file.set_len(0).is_err());
    }
    let answer = call_traced(&server, "first").await;
    assert_eq!(
        (answer.status().as_u16(), path_of(&answer)),
        (200, "shm"),
        "and the chain goes on"
    );
}
