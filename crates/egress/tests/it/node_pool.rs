//! Runs with the connection pool of a node, where supervisors take sockets from ready slots.

use nearpath_testkit::skip;

use crate::harness::{TestPool, run_natively};
use crate::isolation::kill_while_they_connect;
use crate::pass_through::{client, client_or_skip, printed_lines};
use crate::server::LineServer;

#[test]
fn programs_that_connect_repeatedly_print_the_same_as_without_interception() {
    let server = LineServer::start();
    let pool = TestPool::with_node_pool(server.address);
    for call in ["plain", "nonblock", "threads", "plain"] {
        let native = run_natively(&mut client_or_skip!(call, &server));
        let intercepted = pool.run(&mut client_or_skip!(call, &server));
        assert_eq!(
            (printed_lines(&intercepted), intercepted.code),
            (printed_lines(&native), native.code),
            "{call}: {}",
            intercepted.stderr
        );
    }
    assert!(pool.handed_over() > 0, "{:?}", pool.tally());
    pool.wait_all_closed();
}

#[test]
fn programs_killed_while_they_connect_keep_no_slot() {
    let server = LineServer::start();
    let pool = TestPool::with_node_pool(server.address);
    kill_while_they_connect(&pool, &mut client_or_skip!("forever", &server));
    pool.wait_all_closed();
    assert!(
        pool.run(&mut client_or_skip!("plain", &server))
            .stdout
            .contains("echo plain 4\n")
    );
}
