//! The same with the keeper of a node, from whose trays sockets are taken without asking.

use nearpath_testkit::skip;

use crate::doubts::{client, client_or_skip, printed};
use crate::harness::{Pool, natively};
use crate::isolation::kill_while_they_connect;
use crate::server::Server;

#[test]
fn programs_that_connect_again_and_again_print_what_they_print_without() {
    let server = Server::start();
    let pool = Pool::of_a_node(server.address);
    for way in ["plain", "nonblock", "threads", "plain"] {
        let alone = natively(&mut client_or_skip!(way, &server));
        let through = pool.run(&mut client_or_skip!(way, &server));
        assert_eq!((printed(&through), through.code), (printed(&alone), alone.code), "{way}: {}", through.err);
    }
    assert!(pool.given() > 0, "{:?}", pool.tally());
    pool.all_closed();
}

#[test]
fn programs_killed_while_they_connect_keep_no_place() {
    let server = Server::start();
    let pool = Pool::of_a_node(server.address);
    kill_while_they_connect(&pool, &mut client_or_skip!("forever", &server));
    pool.all_closed();
    assert!(pool.run(&mut client_or_skip!("plain", &server)).out.contains("echo plain 4\n"));
}
