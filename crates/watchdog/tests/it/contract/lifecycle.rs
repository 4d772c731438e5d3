//! Start, notes, drain, stop, PID 1.

use std::process::Command;
use std::sync::Arc;

use http::{Request, Response};
use nearpath_testkit::{eventually, need_root, within};
use rustix::process::Signal;
use tokio::sync::Notify;

use crate::contract::support::{
    WatchdogProcess, full, program_path, send, start_hello_tenant, start_tenant, text,
    watchdog_command,
};

/// Returns the exit code, the output and the notes of a watchdog that must not start.
fn failed_start(variables: &[(&str, &str)]) -> (Option<i32>, String, String) {
    let temp = tempfile::tempdir().unwrap();
    let output = watchdog_command(&temp, variables).output().unwrap();
    let notes = std::fs::read_to_string(temp.path().join("notes")).unwrap();
    (
        output.status.code(),
        String::from_utf8(output.stderr).unwrap(),
        notes,
    )
}

#[test]
fn malformed_variables_stop_the_start_by_name() {
    let (code, said, notes) = failed_start(&[
        ("exec_timeout", "soon"),
        ("port", "eighty"),
        ("mode", "inproc"),
    ]);
    assert_eq!(code, Some(1));
    for name in ["exec_timeout", "port", "mode", "inproc"] {
        assert!(said.contains(name), "{said}");
        assert!(
            notes.starts_with("failed ") && notes.contains(name),
            "{notes}"
        );
    }
}

#[test]
fn a_port_in_use_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap();
    let (code, said, _) = failed_start(&[("fprocess", "cat"), ("port", &addr.port().to_string())]);
    assert_eq!(code, Some(1));
    assert!(said.contains(&addr.to_string()), "{said}");
}

#[test]
fn version_and_unknown_flags() {
    for flag in ["-version", "--version"] {
        let output = Command::new(program_path()).arg(flag).output().unwrap();
        assert!(output.status.success());
        assert!(
            String::from_utf8(output.stdout)
                .unwrap()
                .contains(env!("CARGO_PKG_VERSION"))
        );
    }
    assert_eq!(
        Command::new(program_path())
            .arg("-fast")
            .output()
            .unwrap()
            .status
            .code(),
        Some(2)
    );
}

#[tokio::test]
async fn removing_the_lock_file_makes_the_instance_unhealthy() {
    let watchdog = WatchdogProcess::start(&[("fprocess", "cat")]);
    let check = || {
        let port = watchdog.addr.port().to_string();
        let run = Command::new(program_path())
            .arg("-run-healthcheck")
            .env("port", port)
            .env("fprocess", "cat")
            .output();
        run.unwrap().status.code()
    };
    assert_eq!(check(), Some(0));
    std::fs::remove_file(watchdog.temp.path().join(".lock")).unwrap();
    assert_eq!(watchdog.get("/_/health").await.0, 503);
    assert_eq!(check(), Some(1));
    let watchdog = WatchdogProcess::start(&[("fprocess", "cat"), ("suppress_lock", "true")]);
    assert!(!watchdog.temp.path().join(".lock").exists());
    assert_eq!(watchdog.get("/_/health").await.0, 200);
}

#[test]
fn a_folder_that_cannot_be_written_to_stops_the_start() {
    let output = Command::new(program_path())
        .env_clear()
        .envs([
            ("fprocess", "cat"),
            ("port", "0"),
            ("metrics_port", "0"),
            ("TMPDIR", "/proc"),
        ])
        .output();
    let said = String::from_utf8(output.unwrap().stderr).unwrap();
    assert!(
        said.contains("/proc/.lock") && said.contains("suppress_lock"),
        "{said}"
    );
}

#[tokio::test]
async fn notes_report_the_start() {
    let watchdog = WatchdogProcess::in_http_mode(start_hello_tenant().await, &[]);
    eventually("ready is noted", async || {
        watchdog.read_notes().ends_with("ready\n")
    })
    .await;
    let notes = watchdog.read_notes();
    let kinds: Vec<_> = notes
        .lines()
        .map(|line| line.trim_end_matches(|c: char| c.is_ascii_digit()))
        .map(|line| {
            if line.starts_with("server 127.0.0.1:") {
                "server"
            } else {
                line
            }
        })
        .collect();
    assert_eq!(
        kinds,
        ["phase watchdog ", "phase handler ", "server", "ready"]
    );
    let watchdog = WatchdogProcess::start(&[("fprocess", "cat")]);
    eventually("ready is noted", async || {
        watchdog.read_notes().ends_with("ready\n")
    })
    .await;
    assert_eq!(
        watchdog.read_notes().lines().count(),
        2,
        "no server, no handler phase"
    );
}

#[test]
fn a_server_that_dies_at_start_is_reported_with_its_last_output() {
    let script = "sh -c 'echo first; echo cannot import >&2; exit 7'";
    let (code, _, notes) = failed_start(&[
        ("mode", "http"),
        ("fprocess", script),
        ("upstream_url", "127.0.0.1:1"),
    ]);
    assert_eq!(code, Some(1));
    let last = notes.lines().last().unwrap();
    assert!(
        last.starts_with("failed ")
            && last.contains("exit code 7")
            && last.contains("cannot import"),
        "{notes}"
    );
}

#[test]
fn a_server_that_never_listens_is_reported() {
    let variables = [
        ("mode", "http"),
        ("fprocess", "sleep 1000"),
        ("upstream_url", "127.0.0.1:1"),
        ("start_timeout", "100ms"),
    ];
    let (code, _, notes) = failed_start(&variables);
    assert_eq!(code, Some(1));
    assert!(
        notes.contains("failed ") && notes.contains("start_timeout"),
        "{notes}"
    );
}

#[test]
fn a_server_on_another_port_is_named_with_its_port() {
    let port = nearpath_testkit::free_addr().port();
    let server = format!("python3 -m http.server {port} --bind 127.0.0.1");
    let variables = [
        ("mode", "http"),
        ("fprocess", server.as_str()),
        ("upstream_url", "127.0.0.1:1"),
        ("start_timeout", "5s"),
    ];
    let (_, said, notes) = failed_start(&variables);
    let advice = format!("it listens on port {port}: set upstream_url to http://127.0.0.1:{port}");
    assert!(notes.contains(&advice), "{notes}");
    assert!(
        said.matches(&advice).count() >= 2,
        "during the wait as well: {said}"
    );
}

#[test]
fn a_program_that_is_missing_stops_the_start_of_a_server() {
    let (_, said, notes) = failed_start(&[
        ("mode", "http"),
        ("fprocess", "/no/such"),
        ("upstream_url", "127.0.0.1:1"),
    ]);
    assert!(
        said.contains("/no/such") && notes.contains("/no/such"),
        "{said} {notes}"
    );
}

#[tokio::test]
async fn a_stop_runs_its_steps_in_order() {
    let (began, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (begin, wait) = (Arc::clone(&began), Arc::clone(&go));
    let answer = move |_| {
        let (begin, wait) = (Arc::clone(&begin), Arc::clone(&wait));
        async move {
            begin.notify_one();
            wait.notified().await;
            Response::new(full("whole"))
        }
    };
    let addr = start_tenant(answer).await.to_string();
    let process =
        "sh -c 'trap \"echo termed; exit 0\" TERM; echo up; while :; do sleep 0.02; done'";
    let variables = [
        ("mode", "http"),
        ("fprocess", process),
        ("upstream_url", addr.as_str()),
        ("healthcheck_interval", "1h"),
        ("prefix_logs", "false"),
    ];
    let mut watchdog = WatchdogProcess::start(&variables);
    watchdog.stdout.wait_for("up");
    let target = watchdog.addr;
    let ask = move || async move { send(target, Request::get("/").body(full("")).unwrap()).await };
    let first = tokio::spawn(ask());
    within(began.notified()).await;

    watchdog.send_signal(Signal::TERM);
    eventually("unhealthy at once", async || {
        watchdog.get("/_/health").await.0 == 503
    })
    .await;
    assert!(!watchdog.temp.path().join(".lock").exists());
    let second = tokio::spawn(ask());
    within(began.notified()).await; // calls are still taken

    watchdog.send_signal(Signal::TERM); // skips the wait
    eventually("the port is closed", async || {
        tokio::net::TcpStream::connect(target).await.is_err()
    })
    .await;
    assert!(
        !watchdog.stdout.joined_lines().contains("termed"),
        "the tenant goes last"
    );
    assert!(
        watchdog.child.try_wait().unwrap().is_none(),
        "calls are finished first"
    );
    go.notify_one();
    go.notify_one();
    for call in [first, second] {
        eventually("released", async || {
            go.notify_one();
            call.is_finished()
        })
        .await;
        assert_eq!(
            text(call.await.unwrap().unwrap()).await,
            (200, "whole".to_owned())
        );
    }
    assert_eq!(watchdog.wait_exit().await.code(), Some(0));
    watchdog.stdout.wait_for("termed");
}

#[tokio::test]
async fn a_drain_is_bounded_by_write_timeout() {
    let process = ("fprocess", "sh -c 'echo a; exec sleep 1000'");
    let mut watchdog = WatchdogProcess::start(&[
        process,
        ("write_timeout", "200ms"),
        ("healthcheck_interval", "0"),
    ]);
    let response = send(watchdog.addr, Request::get("/").body(full("")).unwrap())
        .await
        .unwrap();
    watchdog.send_signal(Signal::TERM);
    assert_eq!(watchdog.wait_exit().await.code(), Some(0));
    watchdog.stderr.wait_for("write_timeout"); // what it wrote may be read after its end
    drop(response);
}

#[tokio::test]
async fn a_server_that_ignores_sigterm_is_killed() {
    let process = "sh -c 'trap \"\" TERM; echo up; while :; do sleep 0.02; done'";
    let addr = start_hello_tenant().await.to_string();
    let variables = [
        ("mode", "http"),
        ("fprocess", process),
        ("upstream_url", addr.as_str()),
        ("stop_grace", "100ms"),
    ];
    let mut watchdog = WatchdogProcess::start(&variables);
    watchdog.stdout.wait_for("up");
    watchdog.send_signal(Signal::TERM);
    assert_eq!(watchdog.wait_exit().await.code(), Some(0));
    watchdog.stderr.wait_for("stop_grace"); // what it wrote may be read after its end
}

#[tokio::test]
async fn a_server_that_dies_ends_the_watchdog_and_answers_its_calls() {
    let script = r#"
import os, socket, sys
s = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True:
    c = s.accept()[0]
    if c.recv(999):
        print("about to die", flush=True)
        os._exit(9)
"#;
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("tenant.py");
    std::fs::write(&path, script).unwrap();
    let addr = nearpath_testkit::free_addr();
    let process = format!("python3 {} {}", path.display(), addr.port());
    let url = addr.to_string();
    let mut watchdog = WatchdogProcess::start(&[
        ("mode", "http"),
        ("fprocess", &process),
        ("upstream_url", &url),
    ]);
    let (status, said) = watchdog.post("/", "x").await;
    assert_eq!(status, 500, "{said}");
    assert_eq!(watchdog.wait_exit().await.code(), Some(9));
    let line = watchdog.stderr.wait_for("ended with exit code 9");
    assert!(line.contains("about to die"), "{line}");
}

#[tokio::test]
async fn output_is_prefixed_and_split() {
    let process = "sh -c 'echo abcdefgh >&2; printf tail >&2'";
    let watchdog = WatchdogProcess::start(&[("fprocess", process), ("log_buffer_size", "5")]);
    assert_eq!(watchdog.get("/").await.0, 200);
    let line = watchdog.stderr.wait_for("stderr: abcde");
    assert_eq!(
        line.len(),
        "2026/01/31 23:59:59 stderr: abcde".len(),
        "{line}"
    );
    watchdog.stderr.wait_for("stderr: fgh");
    watchdog.stderr.wait_for("stderr: tail");
    let watchdog = WatchdogProcess::start(&[
        ("fprocess", "sh -c 'echo bare >&2'"),
        ("prefix_logs", "false"),
    ]);
    assert_eq!(watchdog.get("/").await.0, 200);
    assert_eq!(watchdog.stderr.wait_for("bare"), "bare");
}

#[tokio::test]
async fn log_callid_logs_one_line_a_call() {
    let watchdog = WatchdogProcess::start(&[("fprocess", "cat"), ("log_callid", "true")]);
    let ask = Request::post("/a?secret=1")
        .header("x-call-id", "id-7")
        .body(full("x"))
        .unwrap();
    assert_eq!(text(send(watchdog.addr, ask).await.unwrap()).await.0, 200);
    let line = watchdog.stdout.wait_for("[id-7]");
    assert!(
        line.contains("POST /a - 200 - ") && !line.contains("secret"),
        "{line}"
    );
}

#[tokio::test]
async fn as_pid_1_it_collects_orphans_and_keeps_its_own() {
    need_root!();
    // Each call leaves an orphan that ends later, and itself ends with a code that must not be
    // lost.
    let process = "sh -c 'sh -c \"sleep 0.05\" >/dev/null 2>&1 & exit 3'";
    let watchdog = WatchdogProcess::spawn(|temp| {
        let inner = watchdog_command(temp, &[("fprocess", process)]);
        let mut outer = Command::new("unshare");
        outer
            .args(["--fork", "--pid", "--mount-proc", "--kill-child=TERM"])
            .arg(inner.get_program())
            .args(inner.get_args());
        outer.env_clear().envs(
            inner
                .get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        );
        outer
            .stdin(std::process::Stdio::null())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped());
        outer
    });
    for _ in 0..20 {
        let (status, said) = watchdog.get("/").await;
        assert!(
            status == 500 && said.contains("exit code 3"),
            "{status} {said}"
        );
    }
    let pid = watchdog.child.id();
    let children = |pid: &str| {
        std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default()
    };
    let inside = children(&pid.to_string()).trim().to_owned();
    assert!(!inside.is_empty(), "the watchdog is unshare's child");
    eventually("no child is left, dead or alive", async || {
        children(&inside).trim().is_empty()
    })
    .await;
}
