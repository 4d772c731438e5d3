//! One way of using a socket after another, in C: with a warm socket where one may take the place of the program's own, and without in any doubt.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use nearpath_kernel::seccomp::listener;
use nearpath_testkit::skip;

use crate::harness::{self, ProgramOutput, TestPool, run_natively};
use crate::server::LineServer;

/// `programs/client.c`, or why it could not be built.
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
    std::fs::rename(&new, &path).unwrap(); // one that runs goes on
    Ok(path)
});

pub(crate) fn client(way: &str, server: &LineServer) -> Result<Command, String> {
    listener::check_listener_support().map_err(|error| format!("no listeners here: {error}"))?;
    let mut command = Command::new(CLIENT.as_ref()?);
    command.args([
        way,
        &server.address.ip().to_string(),
        &server.address.port().to_string(),
    ]);
    Ok(command)
}

macro_rules! client {
    ($way:expr, $server:expr) => {
        match client($way, $server) {
            Ok(command) => command,
            Err(why) => skip!("{why}"),
        }
    };
}
pub(crate) use client as client_or_skip;

/// Twice natively, so that what is compared is known to be the same each time, and twice through one pool.
fn assert_alike(way: &str, mut command: Command, server: &LineServer) -> (TestPool, ProgramOutput) {
    let pool = TestPool::for_server(server.address);
    let left = run_natively(&mut command);
    assert_eq!(
        left,
        run_natively(&mut command),
        "{way} by itself is not the same twice"
    );
    assert_eq!(left.code, Some(0), "{way}: {left:?}");
    for _ in 0..2 {
        assert_eq!(
            pool.run(&mut command),
            left,
            "{way} is another one through the pool: {:?}",
            pool.tally()
        );
    }
    pool.wait_all_closed();
    (pool, left)
}

#[test]
fn these_calls_get_warm_sockets() {
    let server = LineServer::start();
    let ways = [
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
    for (way, given) in ways {
        let (pool, _) = assert_alike(way, client!(way, &server), &server);
        assert_eq!(pool.handed_over(), given, "{way}: {:?}", pool.tally());
    }
}

/// What a program printed, whether or not it had to wait for a connect that need not wait: that differs with what is warm.
pub(crate) fn printed_lines(left: &ProgramOutput) -> Vec<String> {
    left.stdout
        .lines()
        .filter(|line| !line.starts_with("so_error 0"))
        .map(str::to_owned)
        .collect()
}

#[test]
fn non_blocking_calls_get_warm_sockets() {
    let server = LineServer::start();
    for way in ["nonblock", "select", "epoll_after"] {
        let mut command = client!(way, &server);
        let pool = TestPool::for_server(server.address);
        let lines = printed_lines(&run_natively(&mut command));
        for _ in 0..2 {
            assert_eq!(printed_lines(&pool.run(&mut command)), lines, "{way}");
        }
        assert_eq!(pool.handed_over(), 2, "{way}: {:?}", pool.tally());
    }
}

#[test]
fn doubtful_calls_are_passed_through() {
    let server = LineServer::start();
    let ways = [
        ("epoll_before", "watched"),
        ("dup_before", "duplicated"),
        ("odd_option", "TCP_CONGESTION"),
        ("bound", "used"),
        ("wrong", "used"),
        ("listener", "used"),
        ("async", "flags"),
        ("crowded", "crowded"),
    ];
    for (way, doubt) in ways {
        let (pool, _) = assert_alike(way, client!(way, &server), &server);
        assert_eq!(pool.handed_over(), 0, "{way}: {:?}", pool.tally());
        assert!(pool.pass_through(doubt) >= 2, "{way}: {:?}", pool.tally());
    }
}

/// What a connection has from its beginning no other one can be given: the way out carries these, and they are what they are without a pool.
#[test]
fn sockets_with_fixed_options_are_passed_through() {
    nearpath_testkit::need_root!();
    let server = LineServer::start();
    let ways = [
        ("mark", "SO_MARK"),
        ("transparent", "IP_TRANSPARENT"),
        ("device", "SO_BINDTODEVICE"),
        ("reuseport", "SO_REUSEPORT"),
        ("fastopen", "TCP_FASTOPEN_CONNECT"),
    ];
    for (way, doubt) in ways {
        let (pool, left) = assert_alike(way, client!(way, &server), &server);
        assert!(left.stdout.starts_with("setsockopt 0"), "{way}: {left:?}");
        assert_eq!(
            (pool.handed_over(), pool.pass_through(doubt)),
            (0, 2),
            "{way}: {:?}",
            pool.tally()
        );
    }
}

/// What is no connect(), no TCP, or comes after a connection: how many warm sockets each takes in two runs.
#[test]
fn unusual_call_sequences_are_unchanged() {
    let server = LineServer::start();
    for (way, given) in [
        ("fast_send", 0),
        ("multipath", 0),
        ("layered", 2),
        ("twice", 2),
        ("disconnect", 2),
    ] {
        let (pool, _) = assert_alike(way, client!(way, &server), &server);
        assert_eq!(pool.handed_over(), given, "{way}: {:?}", pool.tally());
    }
}

/// What the look at other descriptors is for.
#[test]
fn control_programs_break_without_the_alias_search() {
    let server = LineServer::start();
    for way in ["epoll_before", "dup_before"] {
        let mut command = client!(way, &server);
        let left = run_natively(command.env("PATIENCE", "500"));
        let pool = TestPool::without_alias_search(server.address);
        assert_ne!(pool.run(&mut command), left, "{way} does not need the look");
        assert_eq!(pool.handed_over(), 1, "{way}: {:?}", pool.tally());
    }
}

/// Several threads at once open and close descriptors while theirs are looked at.
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
    let (pool, left) = assert_alike("signals", client!("signals", &server), &server);
    assert!(left.stdout.contains("signals came 1"), "{left:?}");
    assert_eq!(pool.handed_over(), 600, "{:?}", pool.tally());
}

#[test]
fn without_warm_sockets_everything_works_as_before() {
    let server = LineServer::start();
    for way in ["plain", "threads"] {
        let mut command = client!(way, &server);
        let (pool, left) = (
            TestPool::with_warm(server.address, 0),
            run_natively(&mut command),
        );
        assert_eq!(pool.run(&mut command), left);
        assert_eq!(
            (pool.handed_over(), pool.pass_through("empty") > 0),
            (0, true)
        );
    }
}
