//! One way of using a socket after another, in C: with a warm socket where one may take the place of the program's own, and without in any doubt.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use nearpath_kernel::seccomp::listener;
use nearpath_testkit::skip;

use crate::harness::{self, Left, Pool, natively};
use crate::server::Server;

/// `programs/client.c`, or why it could not be built.
static CLIENT: LazyLock<Result<PathBuf, String>> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (path, new) =
        (folder.join("intercepted-client"), folder.join(format!("intercepted-client.{}", std::process::id())));
    let source = harness::source("client.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"]).arg(&new).arg(&source);
    let built = compiler.output().map_err(|error| format!("no C compiler: {error}"))?;
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    std::fs::rename(&new, &path).unwrap(); // one that runs goes on
    Ok(path)
});

pub(crate) fn client(way: &str, server: &Server) -> Result<Command, String> {
    listener::check_listener_support().map_err(|error| format!("no listeners here: {error}"))?;
    let mut command = Command::new(CLIENT.as_ref()?);
    command.args([way, &server.address.ip().to_string(), &server.address.port().to_string()]);
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
fn alike(way: &str, mut command: Command, server: &Server) -> (Pool, Left) {
    let pool = Pool::to(server.address);
    let left = natively(&mut command);
    assert_eq!(left, natively(&mut command), "{way} by itself is not the same twice");
    assert_eq!(left.code, Some(0), "{way}: {left:?}");
    for _ in 0..2 {
        assert_eq!(pool.run(&mut command), left, "{way} is another one through the pool: {:?}", pool.tally());
    }
    pool.all_closed();
    (pool, left)
}

#[test]
fn ways_that_are_given_warm_sockets() {
    let server = Server::start();
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
        let (pool, _) = alike(way, client!(way, &server), &server);
        assert_eq!(pool.given(), given, "{way}: {:?}", pool.tally());
    }
}

/// What a program printed, whether or not it had to wait for a connect that need not wait: that differs with what is warm.
pub(crate) fn printed(left: &Left) -> Vec<String> {
    left.out.lines().filter(|line| !line.starts_with("so_error 0")).map(str::to_owned).collect()
}

#[test]
fn ways_that_do_not_wait() {
    let server = Server::start();
    for way in ["nonblock", "select", "epoll_after"] {
        let mut command = client!(way, &server);
        let pool = Pool::to(server.address);
        let lines = printed(&natively(&mut command));
        for _ in 0..2 {
            assert_eq!(printed(&pool.run(&mut command)), lines, "{way}");
        }
        assert_eq!(pool.given(), 2, "{way}: {:?}", pool.tally());
    }
}

#[test]
fn ways_that_leave_a_doubt() {
    let server = Server::start();
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
        let (pool, _) = alike(way, client!(way, &server), &server);
        assert_eq!(pool.given(), 0, "{way}: {:?}", pool.tally());
        assert!(pool.passed(doubt) >= 2, "{way}: {:?}", pool.tally());
    }
}

/// What a connection has from its beginning no other one can be given: the way out carries these, and they are what they are without a pool.
#[test]
fn odd_sockets_are_left_alone() {
    nearpath_testkit::need_root!();
    let server = Server::start();
    let ways = [
        ("mark", "SO_MARK"),
        ("transparent", "IP_TRANSPARENT"),
        ("device", "SO_BINDTODEVICE"),
        ("reuseport", "SO_REUSEPORT"),
        ("fastopen", "TCP_FASTOPEN_CONNECT"),
    ];
    for (way, doubt) in ways {
        let (pool, left) = alike(way, client!(way, &server), &server);
        assert!(left.out.starts_with("setsockopt 0"), "{way}: {left:?}");
        assert_eq!((pool.given(), pool.passed(doubt)), (0, 2), "{way}: {:?}", pool.tally());
    }
}

/// What is no connect(), no TCP, or comes after a connection: how many warm sockets each takes in two runs.
#[test]
fn odd_orders_of_calls_stay_as_they_are() {
    let server = Server::start();
    for (way, given) in [("fast_send", 0), ("multipath", 0), ("layered", 2), ("twice", 2), ("disconnect", 2)] {
        let (pool, _) = alike(way, client!(way, &server), &server);
        assert_eq!(pool.given(), given, "{way}: {:?}", pool.tally());
    }
}

/// What the look at other descriptors is for.
#[test]
fn control_without_a_look_around_programs_go_wrong() {
    let server = Server::start();
    for way in ["epoll_before", "dup_before"] {
        let mut command = client!(way, &server);
        let left = natively(command.env("PATIENCE", "500"));
        let pool = Pool::blind(server.address);
        assert_ne!(pool.run(&mut command), left, "{way} does not need the look");
        assert_eq!(pool.given(), 1, "{way}: {:?}", pool.tally());
    }
}

/// Several threads at once open and close descriptors while theirs are looked at.
#[test]
fn threads_that_connect_at_once() {
    let server = Server::start();
    let (pool, _) = alike("threads", client!("threads", &server), &server);
    let tally = pool.tally();
    assert_eq!((tally.given, tally.passed.len()), (400, 0), "{tally:?}");
}

#[test]
fn signals_all_the_time() {
    let server = Server::start();
    let (pool, left) = alike("signals", client!("signals", &server), &server);
    assert!(left.out.contains("signals came 1"), "{left:?}");
    assert_eq!(pool.given(), 600, "{:?}", pool.tally());
}

#[test]
fn without_warm_sockets_everything_works_as_before() {
    let server = Server::start();
    for way in ["plain", "threads"] {
        let mut command = client!(way, &server);
        let (pool, left) = (Pool::with(server.address, 0), natively(&mut command));
        assert_eq!(pool.run(&mut command), left);
        assert_eq!((pool.given(), pool.passed("empty") > 0), (0, true));
    }
}
