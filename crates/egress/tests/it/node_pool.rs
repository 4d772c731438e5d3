//! The same with the keeper of a node, from whose trays sockets are taken without asking.

use nearpath_testkit::skip;

use crate::harness::{TestPool, run_natively};
use crate::isolation::kill_while_they_connect;
use crate::pass_through::{client, client_or_skip, printed_lines};
use crate::server::LineServer;

#[test]
fn programs_that_connect_repeatedly_print_the_same_as_without_interception() {
    let server = LineServer::start();
    let pool = TestPool::with_node_pool(server.address);
    for way in ["plain", "nonblock", "threads", "plain"] {
        let alone = run_natively(&mut client_or_skip!(way, &server));
        let through = pool.run(&mut client_or_skip!(way, &server));
        assert_eq!(
            (printed_lines(&through), through.code),
            (printed_lines(&alone), alone.code),
            "{way}: {}",
            through.stderr
        );
    }
    assert!(pool.handed_over() > 0, "{:?}", pool.tally());
    pool.wait_all_closed();
}

#[test]
fn programs_killed_while_they_connect_keep_no_place() {
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
