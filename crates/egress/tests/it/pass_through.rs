//! Uses of a socket in C, one after another: with a warm socket where it may replace the program's
//! own, and without in any doubt.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use nearpath_kernel::seccomp::listener;
use nearpath_testkit::skip;

use crate::harness::{self, PoolSetup, ProgramOutput, TestPool, run_natively};
use crate::server::LineServer;

/// Path of the built `programs/client.c`, or why it could not be built.
static CLIENT: LazyLock<Result<PathBuf, String>> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (path, new) = (
        folder.join("intercepted-client"),
        folder.join(format!("intercepted-client.{}", std::process::id())),
    );
    let source = harness::program_source("client.c");
    let mut compiler = Command::new("cc");
    compiler
        .args(["-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"])
        .arg(&new)
        .arg(&source);
    let built = compiler
        .output()
        .map_err(|error| format!("no C compiler: {error}"))?;
    assert!(
        built.status.success(),
        "{}",
        String::from_utf8_lossy(&built.stderr)
    );
    std::fs::rename(&new, &path).unwrap(); // a running program keeps the old file
    Ok(path)
});

pub(crate) fn client(call: &str, server: &LineServer) -> Result<Command, String> {
    listener::check_listener_support().map_err(|error| format!("no listeners here: {error}"))?;
    let mut command = Command::new(CLIENT.as_ref()?);
    command.args([
        call,
        &server.address.ip().to_string(),
        &server.address.port().to_string(),
    ]);
    Ok(command)
}

macro_rules! client {
    ($call:expr, $server:expr) => {
        match client($call, $server) {
            Ok(command) => command,
            Err(why) => skip!("{why}"),
        }
    };
}
pub(crate) use client as client_or_skip;

/// Runs twice natively, to prove that the output is stable, and twice through one pool.
fn assert_alike(
    call: &str,
    mut command: Command,
    server: &LineServer,
) -> (TestPool, ProgramOutput) {
    let pool = TestPool::for_server(server.address);
    let output = run_natively(&mut command);
    assert_eq!(
        output,
        run_natively(&mut command),
        "{call}: two native runs differ"
    );
    assert_eq!(output.code, Some(0), "{call}: {output:?}");
    for _ in 0..2 {
        assert_eq!(
            pool.run(&mut command),
            output,
            "{call}: the run through the pool differs: {:?}",
            pool.tally()
        );
    }
    pool.wait_all_closed();
    (pool, output)
}

#[test]
fn these_calls_get_warm_sockets() {
    let server = LineServer::start();
    let calls = [
        ("plain", 10),
        ("names", 2),
        ("dup2_after", 2),
        ("fork_after", 4),
        ("exec", 4),
        ("halfclose", 2),
        ("options", 2),
        ("untouched", 2),
        ("mapped", 2),
    ];
    for (call, handed_over) in calls {
        let (pool, _) = assert_alike(call, client!(call, &server), &server);
        assert_eq!(
            pool.handed_over(),
            handed_over,
            "{call}: {:?}",
            pool.tally()
        );
    }
}

/// Returns what a program printed, except for waits on connects: they differ with what is warm.
pub(crate) fn printed_lines(output: &ProgramOutput) -> Vec<String> {
    output
        .stdout
        .lines()
        .filter(|line| !line.starts_with("so_error 0"))
        .map(str::to_owned)
        .collect()
}

#[test]
fn non_blocking_calls_get_warm_sockets() {
    let server = LineServer::start();
    for call in ["nonblock", "select", "epoll_after"] {
        let mut command = client!(call, &server);
        let pool = TestPool::for_server(server.address);
        let lines = printed_lines(&run_natively(&mut command));
        for _ in 0..2 {
            assert_eq!(printed_lines(&pool.run(&mut command)), lines, "{call}");
        }
        assert_eq!(pool.handed_over(), 2, "{call}: {:?}", pool.tally());
    }
}

#[test]
fn doubtful_calls_are_passed_through() {
    let server = LineServer::start();
    let calls = [
        ("epoll_before", "watched"),
        ("dup_before", "duplicated"),
        ("odd_option", "TCP_CONGESTION"),
        ("bound", "used"),
        ("wrong", "used"),
        ("listener", "used"),
        ("async", "flags"),
        ("crowded", "crowded"),
    ];
    for (call, reason) in calls {
        let (pool, _) = assert_alike(call, client!(call, &server), &server);
        assert_eq!(pool.handed_over(), 0, "{call}: {:?}", pool.tally());
        let passed = pool.wait_pass_through(reason, 2);
        assert!(passed >= 2, "{call}: {:?}", pool.tally());
    }
}

/// Options set before connect() that no other socket can get: the egress proxy carries these
/// connections, with the same results as without a pool.
#[test]
fn sockets_with_fixed_options_are_passed_through() {
    nearpath_testkit::need_root!();
    let server = LineServer::start();
    let calls = [
        ("mark", "SO_MARK"),
        ("transparent", "IP_TRANSPARENT"),
        ("device", "SO_BINDTODEVICE"),
        ("reuseport", "SO_REUSEPORT"),
        ("fastopen", "TCP_FASTOPEN_CONNECT"),
    ];
    for (call, reason) in calls {
        let (pool, output) = assert_alike(call, client!(call, &server), &server);
        assert!(
            output.stdout.starts_with("setsockopt 0"),
            "{call}: {output:?}"
        );
        assert_eq!(
            (pool.handed_over(), pool.wait_pass_through(reason, 2)),
            (0, 2),
            "{call}: {:?}",
            pool.tally()
        );
    }
}

/// Calls other than connect(), other protocols, and calls after a connection: the number of warm
/// sockets in two runs.
#[test]
fn unusual_call_sequences_are_unchanged() {
    let server = LineServer::start();
    for (call, handed_over) in [
        ("fast_send", 0),
        ("multipath", 0),
        ("layered", 2),
        ("twice", 2),
        ("disconnect", 2),
    ] {
        let (pool, _) = assert_alike(call, client!(call, &server), &server);
        assert_eq!(
            pool.handed_over(),
            handed_over,
            "{call}: {:?}",
            pool.tally()
        );
    }
}

/// Proves that the alias search is needed.
#[test]
fn control_programs_break_without_the_alias_search() {
    let server = LineServer::start();
    for call in ["epoll_before", "dup_before"] {
        let mut command = client!(call, &server);
        let output = run_natively(command.env("TIMEOUT_MS", "500"));
        let pool = TestPool::without_alias_search(server.address);
        assert_ne!(
            pool.run(&mut command),
            output,
            "{call} does not need the search"
        );
        assert_eq!(pool.handed_over(), 1, "{call}: {:?}", pool.tally());
    }
}

/// Threads open and close descriptors while these are searched.
#[test]
fn threads_connect_concurrently() {
    let server = LineServer::start();
    let (pool, _) = assert_alike("threads", client!("threads", &server), &server);
    let tally = pool.tally();
    assert_eq!(
        (tally.handed_over, tally.pass_through.len()),
        (400, 0),
        "{tally:?}"
    );
}

#[test]
fn signals_interrupt_connects() {
    let server = LineServer::start();
    let (pool, output) = assert_alike("signals", client!("signals", &server), &server);
    assert!(output.stdout.contains("signals came 1"), "{output:?}");
    assert_eq!(pool.handed_over(), 600, "{:?}", pool.tally());
}

#[test]
fn without_warm_sockets_everything_works_as_before() {
    let server = LineServer::start();
    for call in ["plain", "threads"] {
        let mut command = client!(call, &server);
        let (pool, output) = (
            TestPool::with_warm(server.address, 0),
            run_natively(&mut command),
        );
        assert_eq!(pool.run(&mut command), output);
        assert_eq!(
            (pool.handed_over(), pool.pass_through("empty") > 0),
            (0, true)
        );
    }
}

#[test]
fn a_near_server_is_connected_to_while_the_program_waits() {
    let server = LineServer::start();
    for (call, handed_over) in [("burst", 20), ("mapped", 1)] {
        let mut command = client!(call, &server);
        let native = run_natively(&mut command);
        let setup = PoolSetup {
            warm: 0,
            is_near: true,
            ..PoolSetup::default()
        };
        let pool = TestPool::new(server.address, setup);
        assert_eq!(pool.run(&mut command), native, "{call}");
        assert_eq!(
            (pool.handed_over(), pool.pass_through("empty")),
            (handed_over, 0),
            "{call}: {:?}",
            pool.tally()
        );
        pool.wait_all_closed();
    }
}
