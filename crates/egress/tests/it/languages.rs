//! Unmodified runtimes, each run twice against one pool: they print the same as without it.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nearpath_kernel::seccomp::listener;
use nearpath_testkit::skip;

use crate::harness::{TestPool, program_source, run_natively};
use crate::server::LineServer;

/// Runs a command that takes host and port; at least `handed_over` of its connects in two runs get
/// warm sockets.
fn assert_unchanged(command: impl Fn() -> Command, handed_over: u64) {
    if let Err(error) = listener::check_listener_support() {
        skip!("no listeners here: {error}");
    }
    let server = LineServer::start();
    let full_command = || {
        let mut command = command();
        command.args([
            server.address.ip().to_string(),
            server.address.port().to_string(),
        ]);
        command
    };
    let output = run_natively(&mut full_command());
    assert_eq!(output.code, Some(0), "{output:?}");
    let pool = TestPool::for_server(server.address);
    for _ in 0..2 {
        assert_eq!(pool.run(&mut full_command()), output, "{:?}", pool.tally());
    }
    assert!(pool.handed_over() >= handed_over, "{:?}", pool.tally());
    pool.wait_all_closed();
}

fn is_installed(program: &str, arguments: &[&str]) -> bool {
    Command::new(program)
        .args(arguments)
        .output()
        .is_ok_and(|output| output.status.success())
}

fn program_with_file(program: &str, name: &str) -> Command {
    let mut command = Command::new(program);
    command.arg(program_source(name));
    command
}

/// Returns a folder with Python's requests, installed there if Python has none.
fn requests_folder() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("requests");
    let mut import = Command::new("python3");
    import
        .args(["-c", "import requests"])
        .env("PYTHONPATH", &folder);
    let mut ready = || import.output().is_ok_and(|done| done.status.success());
    let mut pip = Command::new("python3");
    pip.args([
        "-m",
        "pip",
        "install",
        "-q",
        "--retries",
        "1",
        "--timeout",
        "20",
        "requests==2.32.3",
        "--target",
    ]);
    (ready()
        || (pip
            .arg(&folder)
            .output()
            .is_ok_and(|done| done.status.success())
            && ready()))
    .then_some(folder)
}

/// Builds a program in a temporary folder.
fn build_program(
    name: &str,
    compiler: impl FnOnce(&Path) -> Command,
) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let output = compiler(folder.path()).output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let path = folder.path().join(name);
    (folder, path)
}

#[test]
fn python() {
    if !is_installed("python3", &["--version"]) {
        skip!("no python3");
    }
    assert_unchanged(|| program_with_file("python3", "lines.py"), 2 * 36);
}

#[test]
fn python_requests() {
    let Some(packages) = requests_folder() else {
        skip!("no python3 with requests, nor a package index")
    };
    let python = || {
        let mut python = program_with_file("python3", "with_requests.py");
        python.env("PYTHONPATH", &packages);
        python
    };
    assert_unchanged(python, 2 * 6);
}

#[test]
fn node() {
    if !is_installed("node", &["--version"]) {
        skip!("no node");
    }
    assert_unchanged(|| program_with_file("node", "client.js"), 2 * 28);
}

#[test]
fn go() {
    if !is_installed("go", &["version"]) {
        skip!("no go");
    }
    let (_folder, client) = build_program("client", |folder| {
        let mut go = Command::new("go");
        go.env("CGO_ENABLED", "0")
            .args(["build", "-o"])
            .arg(folder.join("client"))
            .arg(program_source("client.go"));
        go
    });
    assert_unchanged(|| Command::new(&client), 2 * 52);
}

#[test]
fn java() {
    if !is_installed("javac", &["-version"]) {
        skip!("no javac");
    }
    let (folder, _) = build_program("Client.class", |folder| {
        let mut javac = Command::new("javac");
        javac
            .arg("-d")
            .arg(folder)
            .arg(program_source("Client.java"));
        javac
    });
    let java = || {
        let mut java = Command::new("java");
        java.args(["-XX:TieredStopAtLevel=1", "-cp"])
            .arg(folder.path())
            .arg("Client");
        java
    };
    assert_unchanged(java, 2 * 5);
}

#[test]
fn curl() {
    if !is_installed("curl", &["--version"]) {
        skip!("no curl");
    }
    let script = "for i in 1 2 3; do curl -sS --max-time 20 -d x$i http://$0:$1/curl/$i http://$0:$1/again/$i; done";
    let shell = || {
        let mut shell = Command::new("sh");
        shell.args(["-c", script]);
        shell
    };
    assert_unchanged(shell, 2 * 3);
}

/// A program that speaks TLS itself on warm sockets, and resumes its sessions.
#[test]
fn tls_of_the_programs_own() {
    if let Err(error) = listener::check_listener_support() {
        skip!("no listeners here: {error}");
    }
    let certificate = rcgen::generate_simple_self_signed(["here.test".to_owned()]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("cert"), certificate.cert.pem()).unwrap();
    std::fs::write(
        folder.path().join("key"),
        certificate.signing_key.serialize_pem(),
    )
    .unwrap();
    if !is_installed("python3", &["-c", "import ssl"]) {
        skip!("no python3");
    }
    let mut server = Command::new("python3");
    server
        .arg(program_source("tls_server.py"))
        .arg(folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut server = server.spawn().unwrap();
    let mut port = String::new();
    BufReader::new(server.stdout.take().unwrap())
        .read_line(&mut port)
        .unwrap();
    let address: SocketAddr = format!("127.0.0.1:{}", port.trim()).parse().unwrap();
    let mut client = Command::new("python3");
    client
        .arg(program_source("with_tls.py"))
        .args([address.ip().to_string(), address.port().to_string()]);
    client.arg(folder.path().join("cert"));
    let (pool, output) = (TestPool::for_server(address), run_natively(&mut client));
    assert_eq!(
        (output.code, output.stdout.matches("True").count()),
        (Some(0), 4),
        "{output:?}"
    );
    for _ in 0..2 {
        assert_eq!(pool.run(&mut client), output, "{:?}", pool.tally());
    }
    assert_eq!(pool.handed_over(), 12, "{:?}", pool.tally());
    pool.wait_all_closed();
    drop(server.stdin.take());
    server.wait().unwrap();
}
