//! Programs that die in the middle of a call, and a pool that does.

use std::io::{BufRead, BufReader};
use std::process::Command;

use nearpath_testkit::skip;

use crate::harness::TestPool;
use crate::pass_through::{client, client_or_skip};
use crate::server::LineServer;

#[test]
fn a_client_killed_in_mid_request_leaves_nothing() {
    let server = LineServer::start();
    let pool = TestPool::for_server(server.address);
    for _ in 0..2 {
        let mut child = pool.start(&mut client_or_skip!("wait", &server));
        let mut lines = BufReader::with_capacity(1, child.stdout.take().unwrap());
        for wanted in ["connect 0 \n", "write 9 \n"] {
            let mut line = String::new();
            lines.read_line(&mut line).unwrap();
            assert_eq!(line, wanted);
        }
        child.kill().unwrap();
        child.wait().unwrap();
        pool.wait_all_closed();
        let next = pool.run(&mut client_or_skip!("plain", &server));
        assert!(next.stdout.contains("echo plain 4\n"), "{next:?}");
    }
    assert_eq!(pool.handed_over(), 12);
}

/// Kills one program after another at arbitrary moments of a connect.
pub(crate) fn kill_while_they_connect(pool: &TestPool, forever: &mut Command) {
    for round in 0..20 {
        let mut child = pool.start(forever);
        let mut line = String::new();
        BufReader::with_capacity(1, child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert_eq!(line, "connected 0 \n", "round {round}");
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

/// Kills clients at arbitrary moments of a connect; the supervisor keeps serving others.
#[test]
fn clients_killed_in_mid_call_do_not_stop_the_others() {
    let server = LineServer::start();
    let pool = TestPool::for_server(server.address);
    kill_while_they_connect(&pool, &mut client_or_skip!("forever", &server));
    assert!(
        pool.run(&mut client_or_skip!("plain", &server))
            .stdout
            .contains("echo plain 4\n")
    );
    pool.wait_all_closed();
}

/// The warm sockets are gone with the pool; the kernel continues each call.
#[test]
fn without_a_pool_connects_continue() {
    let server = LineServer::start();
    let pool = TestPool::for_server(server.address);
    let mut child = pool.start(&mut client_or_skip!("forever", &server));
    let mut lines = BufReader::with_capacity(1, child.stdout.take().unwrap());
    let mut next = || {
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        line
    };
    assert_eq!(next(), "connected 0 \n");
    drop(pool);
    for thousands in 1..3 {
        assert_eq!(next(), format!("connected {thousands}000 \n"));
    }
    child.kill().unwrap();
    child.wait().unwrap();
}
