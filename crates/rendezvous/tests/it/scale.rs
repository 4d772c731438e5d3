//! How many workers one process bears, and what one of them costs it.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use futures_util::SinkExt;
use futures_util::stream::{self, StreamExt};
use http::Request;
use nearpath_p2p::message::{Pass, Said, Told};
use nearpath_p2p::ticket::{Key, Ticket};
use nearpath_rendezvous::{Limits, Rate};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::{WebSocketStream, client_async};

use nearpath_testkit::p2p::rendezvous::{House, id, now};

/// A line and what belongs to it take less, in bytes, without TLS.
const MOST_OF_A_LINE: usize = 12 * 1024;

type Web = WebSocketStream<TcpStream>;

/// A rendezvous in a process of its own.
struct Process {
    child: Child,
    addr: String,
}

impl Process {
    fn start() -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "scale::a_process_that_takes_lines", "--ignored", "--nocapture"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
        let addr = lines.map_while(Result::ok).find_map(|line| Some(line.split_once("listens on ")?.1.to_owned()));
        Self { addr: addr.expect("the rendezvous says where it listens"), child }
    }

    /// Bytes of memory that are its own.
    fn memory(&self) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let kilobytes = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        kilobytes.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn name(at: usize) -> String {
    format!("w{at}")
}

fn ticket(at: usize) -> Pass {
    Ticket { you: id(&name(at)), job: "scale".parse().unwrap(), leader: false, until: now() + 3600 }
        .mint(&Key::new([5; 32]))
}

async fn line(addr: &str, at: usize) -> Web {
    let request = Request::get(format!("ws://{addr}/v1/line"))
        .header("host", addr)
        .header("connection", "Upgrade")
        .header("upgrade", "websocket")
        .header("sec-websocket-version", "13")
        .header("sec-websocket-key", generate_key())
        .header("authorization", format!("Bearer {}", ticket(at).0));
    let stream = TcpStream::connect(addr).await.unwrap();
    let (mut web, _) = client_async(request.body(()).unwrap(), stream).await.unwrap();
    assert!(matches!(told(&mut web).await, Told::Welcome(_)));
    web
}

async fn told(web: &mut Web) -> Told {
    loop {
        if let Message::Text(text) = web.next().await.unwrap().unwrap() {
            return serde_json::from_str(&text).unwrap();
        }
    }
}

/// Lines first, then every second worker calls the next one, all of them at once.
async fn crowd(count: usize) {
    let process = Process::start();
    let empty = process.memory();
    let begun = Instant::now();
    let lines = stream::iter(0..count).map(|at| line(&process.addr, at)).buffered(64);
    let mut lines: Vec<Web> = lines.collect().await;
    let (full, here) = (process.memory(), begun.elapsed());
    let each = (full - empty) / count;
    for (at, web) in lines.iter_mut().enumerate().step_by(2) {
        let said = Said::Call { call: 1, peer: id(&name(at + 1)), about: String::new(), within: 0, hello: None };
        web.send(Message::text(serde_json::to_string(&said).unwrap())).await.unwrap();
    }
    for web in &mut lines {
        assert!(matches!(told(web).await, Told::Granted(_)));
    }
    let met = begun.elapsed() - here;
    eprintln!("{count} lines in {here:?}, {each} bytes each; {} pairs in {met:?}", count / 2);
    eprintln!("with their sessions {} bytes each", (process.memory() - empty) / count);
    assert!(each < MOST_OF_A_LINE, "{each} bytes a line");
}

#[tokio::test]
async fn a_thousand_workers_meet() {
    nearpath_testkit::within(crowd(1000)).await;
}

#[tokio::test]
#[ignore = "ten thousand lines: make test-rendezvous"]
async fn ten_thousand_workers_meet() {
    crowd(10_000).await;
}

#[test]
#[ignore = "a helper: run by the others"]
fn a_process_that_takes_lines() {
    let plenty = Rate { per_second: 1_000_000, burst: 1_000_000 };
    let house = House::start(Limits { arrivals: plenty, ..Limits::default() });
    println!("listens on {}", house.rendezvous.addr);
    std::io::stdout().flush().unwrap();
    let _ = std::io::stdin().read_line(&mut String::new()); // ends with the one who started it
}
