//! Runs unmodified client programs.

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio::sync::OnceCell;

/// Python with redis-py, hiredis, PyMySQL, Oracle's connector and requests.
static PYTHON: OnceCell<Option<PathBuf>> = OnceCell::const_new();

const PACKAGES: &[&str] = &[
    "redis==8.1.0",
    "hiredis==3.2.1",
    "PyMySQL==1.1.1",
    "requests==2.32.3",
    "mysql-connector-python==9.1.0",
];

/// Returns the interpreter. `None`: Python or the package index is missing.
pub(crate) async fn python() -> Option<&'static Path> {
    PYTHON.get_or_init(create_venv).await.as_deref()
}

async fn create_venv() -> Option<PathBuf> {
    let venv = Path::new(env!("CARGO_TARGET_TMPDIR")).join("clients");
    let _lock = nearpath_testkit::lock_shared_folder(&venv);
    let python = venv.join("bin/python");
    let there = async || {
        let all = "import redis, hiredis, pymysql, requests, mysql.connector; assert redis.VERSION >= (8, 1)";
        succeeds(Command::new(&python).args(["-c", all])).await
    };
    if there().await {
        return Some(python);
    }
    let made = succeeds(Command::new("python3").arg("-m").arg("venv").arg(&venv)).await
        && succeeds(
            Command::new(&python)
                .args([
                    "-m",
                    "pip",
                    "install",
                    "-q",
                    "--retries",
                    "1",
                    "--timeout",
                    "20",
                ])
                .args(PACKAGES),
        )
        .await;
    made.then_some(python)
}

pub(crate) async fn succeeds(command: &mut Command) -> bool {
    let done = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .await;
    done.is_ok_and(|status| status.success())
}

/// Runs a program with `input` and returns its output. Panics with its output if it fails.
pub(crate) async fn run_program(command: &mut Command, input: &str) -> String {
    let Output {
        status,
        stdout,
        stderr,
    } = program_output(command, input).await;
    let (out, err) = (
        String::from_utf8_lossy(&stdout),
        String::from_utf8_lossy(&stderr),
    );
    assert!(status.success(), "{status}\n{out}\n{err}");
    out.into_owned()
}

/// Runs a program with `input` and returns its output and exit status.
pub(crate) async fn program_output(command: &mut Command, input: &str) -> Output {
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).await.unwrap();
    drop(stdin);
    child.wait_with_output().await.unwrap()
}

/// Runs a Python program whose arguments are host and port of `at`.
pub(crate) async fn run_script(python: &Path, source: &str, at: std::net::SocketAddr) -> String {
    run_program(
        Command::new(python)
            .arg("-")
            .arg(at.ip().to_string())
            .arg(at.port().to_string()),
        source,
    )
    .await
}
