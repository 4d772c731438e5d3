//! Functions that go outside: to what they declared, and nowhere else. The machine is a network namespace of the test's own.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;

use http::Method;
use nearpath_kernel::devices::{Devices, quiet_namespace};
use nearpath_kernel::namespace;
use nearpath_testkit::{eventually, need_root, skip};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::house::{House, http_function};

/// The machine's address besides loopback: documentation's own (RFC 5737).
const MACHINE: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 7);
/// The name by which functions know the machine.
const NAMED: &str = "host.nearpath.internal";

/// Runs the Python that it is sent; what that leaves in `said` is the answer.
const RUN: &str = r#"import socket, errno, threading, select, subprocess, signal
said = {}
try:
    exec(body.decode(), {"socket": socket, "select": select, "os": os, "time": time, "subprocess": subprocess, "sys": sys, "signal": signal}, said)
    self.answer(200, str(said.get("said")).encode())
except OSError as error:
    self.answer(200, errno.errorcode.get(error.errno, str(error)).encode())
except Exception as error:
    self.answer(200, repr(error).encode())"#;

/// A server outside. To each line it says what came before it, to the end of the lines how many there were.
struct Outside {
    port: u16,
    seen: Arc<Mutex<Seen>>,
}

/// How its connections came and ended.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Seen {
    came: u32,
    ended: u32,
    broken: u32,
}

impl Outside {
    fn at(address: impl Into<IpAddr>) -> Self {
        Self::on(TcpListener::bind((address.into(), 0)).unwrap())
    }

    fn on(listener: TcpListener) -> Self {
        let port = listener.local_addr().unwrap().port();
        let seen = Arc::<Mutex<Seen>>::default();
        let all = Arc::clone(&seen);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                all.lock().unwrap().came += 1;
                let seen = Arc::clone(&all);
                thread::spawn(move || {
                    let whole = serve(client).is_ok();
                    let mut seen = seen.lock().unwrap();
                    *(if whole { &mut seen.ended } else { &mut seen.broken }) += 1;
                });
            }
        });
        Self { port, seen }
    }

    fn seen(&self) -> Seen {
        self.seen.lock().unwrap().clone()
    }
}

fn serve(mut client: TcpStream) -> std::io::Result<()> {
    let (mut lines, mut count) = (BufReader::new(client.try_clone()?), 0);
    let mut line = String::new();
    while lines.read_line(&mut line)? > 0 {
        count += 1;
        client.write_all(format!("heard {line}").as_bytes())?;
        line.clear();
    }
    client.write_all(format!("bye {count}\n").as_bytes())
}

/// The calling thread, and what it starts from now on, are on a machine of their own.
fn on_a_machine() {
    let machine = quiet_namespace().unwrap();
    namespace::enter(&machine).unwrap();
    let mut devices = Devices::open().unwrap();
    let loopback = devices.index("lo").unwrap();
    devices.address(loopback, (MACHINE.into(), 32)).unwrap();
}

/// A function that runs what it is sent, and may go where `egress` says.
fn runner(folder: &Path, name: &str, egress: &str) -> Value {
    let mut spec = http_function(folder, name, RUN);
    spec["annotations"] = json!({ "nearpath.io/egress": egress });
    spec
}

/// Runs Python in a function.
async fn run(house: &House, function: &str, code: &str) -> String {
    let answer = house.ask(Method::POST, &format!("/function/{function}"), code.to_owned()).await;
    String::from_utf8_lossy(answer.body()).into_owned()
}

/// Says a line to a place, and gives what it answers.
fn hello(to: impl std::fmt::Display, port: u16) -> String {
    format!(
        "s = socket.create_connection(('{to}', {port}), 20)\ns.sendall(b'hello\\n')\nsaid = s.recv(99).decode().strip()\ns.close()"
    )
}

/// What a connection that is reset says, at whichever step.
fn is_reset(said: &str) -> bool {
    ["ECONNRESET", "ECONNREFUSED", "EPIPE", "ENOTCONN"].contains(&said)
}

#[tokio::test]
async fn what_is_declared_is_reached_and_nothing_else() {
    need_root!();
    on_a_machine();
    reaches_what_it_declared(&[]).await;
}

#[tokio::test]
async fn a_forwarder_lets_it_through_too() {
    need_root!();
    if let Err(why) = nearpath_kernel::bpf::forwarding_possible() {
        skip!("no forwarding here: {why}");
    }
    on_a_machine();
    reaches_what_it_declared(&["--forward", "tc"]).await;
}

async fn reaches_what_it_declared(options: &[&str]) {
    let (own, at_machine, secret) = (Outside::at(Ipv4Addr::LOCALHOST), Outside::at(MACHINE), Outside::at(MACHINE));
    let folder = tempfile::tempdir().unwrap();
    let house = House::start_in(folder.path(), options).await;
    let egress = format!("{NAMED}:{}, {MACHINE}:{}", own.port, at_machine.port);
    house.deploy_ready(&runner(folder.path(), "goes", &egress)).await;
    house.deploy_ready(&runner(folder.path(), "stays", "")).await;
    for _ in 0..2 {
        assert_eq!(run(&house, "goes", &hello(NAMED, own.port)).await, "heard hello", "{}", house.log());
        assert_eq!(run(&house, "goes", &hello(MACHINE, at_machine.port)).await, "heard hello");
    }
    let refused: BTreeSet<_> = ["ENETUNREACH", "ECONNREFUSED"].map(str::to_owned).into();
    let denied = async |function: &str, to: &str, port| {
        let said = run(&house, function, &hello(to, port)).await;
        assert!(refused.contains(&said) || is_reset(&said), "{function} to {to}:{port}: {said}");
    };
    denied("goes", &MACHINE.to_string(), secret.port).await; // another port
    denied("goes", &MACHINE.to_string(), own.port).await; // a port that is declared elsewhere
    denied("goes", "203.0.113.8", at_machine.port).await; // another machine
    denied("goes", "10.62.0.1", at_machine.port).await; // the gateway's address
    denied("goes", "127.0.0.1", own.port).await; // its own loopback
    denied("goes", &MACHINE.to_string(), house.addr.port()).await; // the API
    denied("stays", &MACHINE.to_string(), at_machine.port).await; // another function's
    denied("stays", "10.61.0.2", own.port).await; // what stands for another function's name
    let unnamed = run(&house, "stays", &hello(NAMED, own.port)).await;
    assert!(unnamed.contains("name"), "the resolver of the instance does not know it: {unnamed}");
    assert_eq!((secret.seen().came, at_machine.seen().came, own.seen().came), (0, 2, 2));
}
