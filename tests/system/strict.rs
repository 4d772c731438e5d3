//! `isolation: strict` from outside: a chain of two whose parties read each other's memory and cannot write it.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;

use http::Method;
use nearpath_testkit::{eventually, within};
use rustix::fs::{SealFlags, fcntl_get_seals};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::house::{House, http_function};
use crate::shm::{ask, function, path, until_in_memory};

fn strict(house: &House, name: &str, next: Option<&str>, calls: &str) -> Value {
    let mut spec = function(house, name, next, calls);
    spec["annotations"]["nearpath.io/isolation"] = json!("strict");
    spec
}

async fn chain(house: &House) {
    house.deploy_ready(&strict(house, "second", None, "")).await;
    house.deploy_ready(&strict(house, "first", Some("second"), "second")).await;
    until_in_memory(house, "first").await;
    eventually("first knows second", async || ask(house, "first").await.status() == 200).await;
}

#[tokio::test]
async fn a_strict_chain_answers_through_memory() {
    nearpath_testkit::need_root!();
    let house = House::start().await;
    chain(&house).await;
    for _ in 0..50 {
        let answer = ask(&house, "first").await;
        assert_eq!((answer.status().as_u16(), path(&answer), answer.body().len()), (200, "shm", 100));
    }
    let mut open = function(&house, "open", Some("second"), "second");
    open["annotations"]["nearpath.io/isolation"] = json!("shared");
    house.deploy_ready(&open).await;
    until_in_memory(&house, "open").await;
    let answer = ask(&house, "open").await;
    assert_eq!(answer.status(), 502, "its handler knows no other way, and the strict domain is not its own");
    let mut wrong = function(&house, "wrong", None, "");
    wrong["annotations"]["nearpath.io/isolation"] = json!("very");
    assert_eq!(house.ask(Method::POST, "/system/functions", wrong.to_string()).await.status(), 400);
}

/// Sends an event, and the next one when it is told to.
const EVENTS: &str = r#"if self.path == "/go":
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

/// Reads until the text has come.
async fn until_comes(stream: &mut TcpStream, read: &mut String, text: &str) {
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
    let house = House::start().await;
    let mut source = http_function(&house.data_dir, "source", EVENTS);
    let script = house.data_dir.join("fn-source/server.py");
    let text = fs::read_to_string(&script).unwrap();
    fs::write(&script, format!("import threading\ngo = threading.Event()\n{text}")).unwrap();
    source["annotations"] = json!({ "nearpath.io/chain": "news", "nearpath.io/isolation": "strict" });
    house.deploy_ready(&source).await;
    until_in_memory(&house, "source").await;
    let mut stream = TcpStream::connect(house.addr).await.unwrap();
    let asked = "GET /function/source/events HTTP/1.1\r\nhost: localhost\r\nx-nearpath-path: ?\r\n\r\n";
    stream.write_all(asked.as_bytes()).await.unwrap();
    let mut read = String::new();
    within(until_comes(&mut stream, &mut read, "data: 0")).await;
    assert!(read.contains("x-nearpath-path: shm"), "{read}");
    assert_eq!(house.ask(Method::POST, "/function/source/go", "").await.status(), 200);
    within(until_comes(&mut stream, &mut read, "data: 1")).await;
}

/// One pool that a process has mapped.
struct Mapped {
    pid: i32,
    range: String,
    writable: bool,
}

impl Mapped {
    /// The pools of strict parties that a process has mapped; see proc_pid_maps(5).
    fn of(pid: i32) -> Vec<Self> {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
        let pools = maps.lines().filter(|line| line.contains("/memfd:nearpath-own"));
        let read = |line: &str| {
            let mut words = line.split_whitespace();
            let (range, rights) = (words.next().unwrap().to_owned(), words.next().unwrap());
            assert!(rights.ends_with('s') && rights.starts_with('r'), "{line}");
            Self { pid, range, writable: rights.contains('w') }
        };
        pools.map(read).collect()
    }

    fn start(&self) -> u64 {
        u64::from_str_radix(self.range.split('-').next().unwrap(), 16).unwrap()
    }

    /// Writes a byte over itself as the process would, whatever the page table says: a debugger's write, which a shared
    /// mapping refuses when it can never become writable (`mm/gup.c`, `check_vma_flags`).
    fn poke(&self) -> std::io::Result<usize> {
        let memory = OpenOptions::new().read(true).write(true).open(format!("/proc/{}/mem", self.pid))?;
        let mut byte = [0];
        memory.read_exact_at(&mut byte, self.start())?;
        memory.write_at(&byte, self.start())
    }

    fn file(&self) -> File {
        let link = format!("/proc/{}/map_files/{}", self.pid, self.range);
        OpenOptions::new().read(true).write(true).open(link).unwrap()
    }
}

#[tokio::test]
async fn nobody_writes_in_a_peers_pool_not_even_with_the_power_of_root() {
    nearpath_testkit::need_root!();
    let house = House::start().await;
    chain(&house).await;
    let mut pools = Vec::new();
    for name in ["first", "second"] {
        let processes = house.processes(name).await;
        pools.extend(processes.into_iter().flat_map(Mapped::of));
    }
    let (own, peers): (Vec<_>, Vec<_>) = pools.into_iter().partition(|pool| pool.writable);
    assert!(own.len() >= 2 && peers.len() >= 3, "{} own, {} of peers", own.len(), peers.len());
    for pool in &own {
        assert_eq!(pool.poke().unwrap(), 1, "its maker writes there: the check below can succeed");
    }
    for pool in &peers {
        assert!(pool.poke().is_err(), "written through a mapping for reading: {} of {}", pool.range, pool.pid);
    }
    for pool in own.iter().chain(&peers) {
        let file = pool.file();
        let wanted = SealFlags::FUTURE_WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        assert!(fcntl_get_seals(&file).unwrap().contains(wanted));
        assert!(file.write_at(&[0], 0).is_err() && file.set_len(0).is_err());
    }
    let answer = ask(&house, "first").await;
    assert_eq!((answer.status().as_u16(), path(&answer)), (200, "shm"), "and the chain goes on");
}
