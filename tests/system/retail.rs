//! The shop with a database, as its demo shows it: unmodified functions that open a connection for
//! every access share few connections of the node.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use nearpath_testkit::{need_root, program, skip};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::Command;

use crate::test_server::TestServer;

const EXAMPLE_FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/retail");
/// Enough for sixteen Python functions, a database and packages, beside other tests.
const DEMO_TIMEOUT: Duration = Duration::from_secs(300);
/// Limit that stack.yml declares.
const MAX_CONNECTIONS: u32 = 20;

/// Installs the functions' packages. The demo would do that, too, but here their absence is a skip.
async fn install_packages() -> bool {
    let folder = Path::new(EXAMPLE_FOLDER).join("services/packages");
    if folder.join("pg8000").exists() {
        return true;
    }
    let mut pip = Command::new("python3");
    pip.args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--retries",
        "1",
        "--timeout",
        "20",
        "--target",
    ])
    .arg(&folder);
    pip.args(["-r", "requirements.txt"])
        .current_dir(EXAMPLE_FOLDER)
        .stdin(Stdio::null());
    pip.output().await.is_ok_and(|done| done.status.success())
}

fn has_database() -> bool {
    let versions = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten();
    versions
        .filter_map(Result::ok)
        .any(|version| version.path().join("bin/initdb").exists())
}

/// Runs the demo to its end, which removes everything; so does its end by a signal.
async fn run_demo(server: &TestServer) -> (bool, String) {
    let folder = program("nearpath").parent().unwrap().to_owned();
    let path = format!(
        "{}:{}",
        folder.display(),
        std::env::var("PATH").unwrap_or_default()
    );
    let mut command = Command::new("./demo.sh");
    command
        .current_dir(EXAMPLE_FOLDER)
        .env("PATH", path)
        .env("OPENFAAS_URL", format!("http://{}", server.addr));
    command
        .env("DEMO_SECONDS", "3")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let pid = Pid::from_raw(child.id().unwrap().cast_signed()).unwrap();
    let mut ends = Box::pin(child.wait_with_output());
    let ended = match tokio::time::timeout(DEMO_TIMEOUT, &mut ends).await {
        Ok(ended) => ended,
        Err(_) => {
            kill_process(pid, Signal::TERM).unwrap();
            ends.await
        }
    };
    let ended = ended.unwrap();
    let reply = [&ended.stdout[..], &ended.stderr]
        .map(|text| String::from_utf8_lossy(text).into_owned())
        .concat();
    (ended.status.success(), reply)
}

/// Reads the number that follows a text.
fn read_number(reply: &str, after: &str) -> u32 {
    let rest = reply
        .split_once(after)
        .unwrap_or_else(|| panic!("{after}: {reply}"))
        .1;
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap()
}

#[tokio::test]
async fn functions_that_connect_for_every_access_share_few_connections() {
    need_root!();
    if !has_database() {
        skip!("needs PostgreSQL");
    }
    if !install_packages().await {
        skip!("needs pip and its index for pg8000");
    }
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start_in(folder.path(), &[]).await;
    let (ended_well, reply) = run_demo(&server).await;
    assert!(ended_well, "{reply}\n{}", server.log());
    assert!(reply.contains("failed: 0"), "{reply}");
    // A round of the three chains opens at least ten connections. A sandbox reaches the database
    // only through the node.
    let (rounds, opened) = (
        request_count(&reply, "product-purchase"),
        read_number(&reply, "connections to the database meanwhile: "),
    );
    assert!(rounds > 0 && opened <= MAX_CONNECTIONS, "{reply}");
    assert!(read_number(&reply, "for everything so far ") > 0, "{reply}");
}

/// Number of a function's requests in the load's table.
fn request_count(reply: &str, function: &str) -> u32 {
    let line = reply
        .lines()
        .filter(|line| line.starts_with(function))
        .find_map(|line| {
            let words: Vec<_> = line.split_whitespace().collect();
            (words.len() == 4).then(|| words[1].parse().ok()).flatten()
        });
    line.unwrap_or_else(|| panic!("{function}: {reply}"))
}
