//! The header matches the library; C programs, compiled as by a user, call each other through shared memory and over HTTP.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nearpath_domain::node_side::{DomainHandle, DomainSettings, EndpointSocket};
use nearpath_domain::protocol::EdgeTerms;
use nearpath_testkit::{eventually_blocking, free_addr, program, skip};
use nearpath_types::{FunctionId, InstanceId};
use rustix::process::{Pid, Signal, kill_process};

fn crate_dir() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the names of functions after each `mark` in a text.
fn names(text: &str, mark: &str) -> BTreeSet<String> {
    let after = text.split(mark).skip(1);
    let names = after.map(|rest| {
        rest.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .next()
            .unwrap()
    });
    names
        .filter(|name| name.starts_with("np_"))
        .map(str::to_owned)
        .collect()
}

#[test]
fn the_header_declares_what_the_library_has() {
    let header = std::fs::read_to_string(crate_dir().join("include/nearpath.h")).unwrap();
    let code: String = header
        .lines()
        .filter(|line| !line.trim_start().starts_with("/*"))
        .collect::<Vec<_>>()
        .join("\n");
    let declared: BTreeSet<String> = code
        .match_indices("np_")
        .filter_map(|(at, _)| declared(&code[at..]))
        .collect();
    let sources = std::fs::read_dir(crate_dir().join("src")).unwrap();
    let sources = sources
        .map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap())
        .collect::<String>();
    let defined: BTreeSet<String> = names(&sources, "extern \"C\" fn ");
    assert_eq!(declared, defined);
    assert!(defined.len() > 25, "{defined:?}");
}

/// Returns a name followed by parameters, but not a type in parentheses.
fn declared(text: &str) -> Option<String> {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_')?;
    text[end..].starts_with('(').then(|| text[..end].to_owned())
}

/// Compiles a program as a user does: warnings are errors.
fn compile(folder: &Path, source: &str) -> Result<PathBuf, String> {
    let out = folder.join("program");
    let mut gcc = Command::new("gcc");
    gcc.args([
        "-std=c99",
        "-D_POSIX_C_SOURCE=200809L",
        "-Wall",
        "-Wextra",
        "-Wpedantic",
        "-Werror",
        "-g",
        "-I",
    ])
    .arg(crate_dir().join("include"));
    gcc.arg(crate_dir().join(source))
        .arg(program("libnearpath_c.a"))
        .args(["-lpthread", "-ldl", "-lm", "-lgcc_s"]);
    let done = gcc
        .arg("-o")
        .arg(&out)
        .output()
        .map_err(|error| format!("gcc cannot be run: {error}"))?;
    assert!(
        done.status.success(),
        "{}",
        String::from_utf8_lossy(&done.stderr)
    );
    Ok(out)
}

/// A process that ends with the test.
struct FunctionProcess(Child);

impl FunctionProcess {
    fn start(program: &Path, words: &[&str], environment: &[(&str, String)]) -> Self {
        let mut command = Command::new(program);
        command
            .args(words)
            .env_remove("NEARPATH_DISPATCH")
            .env_remove("upstream_url")
            .stdout(Stdio::null());
        Self(command.envs(environment.iter().cloned()).spawn().unwrap())
    }

    /// Returns the exit code; panics after 60 s.
    fn end(&mut self) -> Option<i32> {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status.code();
            }
            assert!(Instant::now() < end, "the program hangs");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn stop(&mut self) -> Option<i32> {
        kill_process(Pid::from_raw(self.0.id() as i32).unwrap(), Signal::TERM).unwrap();
        self.end()
    }
}

impl Drop for FunctionProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn wait_until_listening(address: SocketAddr) {
    eventually_blocking("the program listens", || {
        std::net::TcpStream::connect(address).is_ok()
    });
}

/// Runs two programs in a domain: the arguments of the callee, its name, and the arguments of the caller.
fn in_a_domain(source: &str, serves: &[&str], name: &str, calls: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let program = match compile(folder.path(), source) {
        Ok(program) => program,
        Err(why) => skip!("{why}"),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let (hub, _faults) =
        runtime.block_on(async { DomainHandle::start(DomainSettings::named("c")).unwrap() });
    let terms = EdgeTerms {
        topics: vec!["orders".to_owned()],
        ..EdgeTerms::default()
    };
    let callee: FunctionId = name.parse().unwrap();
    hub.declare_edges_with([(("caller".parse().unwrap(), callee), terms)]);
    let start = |instance, name: &str, words: &[&str], port: SocketAddr| {
        let socket = folder.path().join(name);
        hub.admit_instance(
            InstanceId(instance),
            name.parse().unwrap(),
            EndpointSocket::listen_at(&socket).unwrap(),
        );
        let environment = [
            ("NEARPATH_DISPATCH", socket.display().to_string()),
            ("PORT", port.port().to_string()),
        ];
        FunctionProcess::start(&program, words, &environment)
    };
    let mut callee = start(1, name, serves, free_addr());
    let mut caller = start(2, "caller", calls, free_addr());
    assert_eq!(caller.end(), Some(0));
    assert_eq!(callee.stop(), Some(0));
    runtime.block_on(async {
        nearpath_testkit::eventually("all slots are back", async || {
            hub.read_usage().await.slots == 0
        })
        .await;
        hub.stop().await;
    });
}

#[test]
fn two_programs_in_c_talk_through_memory() {
    in_a_domain(
        "tests/conversation.c",
        &["serve"],
        "callee",
        &["call", "shm"],
    );
}

#[test]
fn bodies_go_piece_by_piece_and_threads_answer_at_once() {
    in_a_domain(
        "tests/pieces.c",
        &["serve", "3"],
        "listens-orders",
        &["call", "shm"],
    );
}

/// Starts a gateway for one function: it removes `/function/NAME` and forwards the rest.
fn gateway(to: SocketAddr) -> SocketAddr {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut from = stream.unwrap();
            std::thread::spawn(move || {
                let mut first = [0; 4096];
                let n = from.read(&mut first).unwrap();
                let text = String::from_utf8_lossy(&first[..n]).replacen("/function/callee", "", 1);
                let text = text.replacen(" HTTP/1.1\r\n", " HTTP/1.1\r\nconnection: close\r\n", 1);
                let text = text.replacen("POST  ", "POST / ", 1);
                let mut to = std::net::TcpStream::connect(to).unwrap();
                to.write_all(text.as_bytes()).unwrap();
                let (mut up, mut up_to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                std::thread::spawn(move || std::io::copy(&mut up, &mut up_to));
                let _ = std::io::copy(&mut to, &mut from);
                let _ = from.shutdown(std::net::Shutdown::Both);
            });
        }
    });
    address
}

#[test]
fn outside_a_domain_they_talk_over_http() {
    let folder = tempfile::tempdir().unwrap();
    let program = match compile(folder.path(), "tests/conversation.c") {
        Ok(program) => program,
        Err(why) => skip!("{why}"),
    };
    let port = free_addr();
    let mut callee =
        FunctionProcess::start(&program, &["serve"], &[("PORT", port.port().to_string())]);
    wait_until_listening(port);
    let gateway = [("NEARPATH_GATEWAY", format!("http://{}", gateway(port)))];
    let mut caller = FunctionProcess::start(&program, &["call", "http"], &gateway);
    assert_eq!(caller.end(), Some(0));
    assert_eq!(callee.stop(), Some(0));
}

/// The function is its own gateway: it checks the end of the path.
#[test]
fn piece_by_piece_over_http() {
    let folder = tempfile::tempdir().unwrap();
    let program = match compile(folder.path(), "tests/pieces.c") {
        Ok(program) => program,
        Err(why) => skip!("{why}"),
    };
    let port = free_addr();
    let mut callee = FunctionProcess::start(
        &program,
        &["serve", "3"],
        &[("PORT", port.port().to_string())],
    );
    wait_until_listening(port);
    let gateway = [("NEARPATH_GATEWAY", format!("http://{port}"))];
    let mut caller = FunctionProcess::start(&program, &["call", "http"], &gateway);
    assert_eq!(caller.end(), Some(0));
    assert_eq!(callee.stop(), Some(0));
}

/// SIGPIPE has its default action, as in every C program: a write to a caller that is gone must not end the process.
#[test]
fn a_caller_that_goes_away_does_not_end_the_process() {
    use std::io::{Read, Write};
    let folder = tempfile::tempdir().unwrap();
    let program = match compile(folder.path(), "tests/pieces.c") {
        Ok(program) => program,
        Err(why) => skip!("{why}"),
    };
    let port = free_addr();
    let mut callee = FunctionProcess::start(
        &program,
        &["serve", "3"],
        &[("PORT", port.port().to_string())],
    );
    wait_until_listening(port);
    for _ in 0..500 {
        let mut caller = std::net::TcpStream::connect(port).unwrap();
        caller
            .set_read_timeout(Some(Duration::from_secs(30)))
            .unwrap();
        caller
            .write_all(b"GET /flood HTTP/1.1\r\nhost: f\r\n\r\n")
            .unwrap();
        assert_ne!(caller.read(&mut [0; 60_000]).unwrap(), 0); // reads all received bytes, so that close() sends no reset
    }
    assert_eq!(callee.stop(), Some(0));
}

#[test]
fn the_example_compiles() {
    let folder = tempfile::tempdir().unwrap();
    if let Err(why) = compile(folder.path(), "examples/price.c") {
        skip!("{why}");
    }
}
