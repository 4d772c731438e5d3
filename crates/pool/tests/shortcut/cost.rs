//! What the shortcut costs and spares on this machine. Not a test: `cargo test -p nearpath-pool --test shortcut -- --ignored --nocapture cost`.

use std::collections::BTreeMap;

use nearpath_testkit::skip;

use crate::doubts::{client, client_or_skip};
use crate::harness::{Left, Pool, Setup, natively};
use crate::server::Server;

const RUNS: usize = 7;

/// Natively, with nothing to give, and with warm sockets, taking turns.
#[test]
#[ignore = "a measurement"]
fn cost() {
    let server = Server::start();
    let mut command = client_or_skip!("cost", &server);
    let empty = Pool::with(server.address, 0);
    let mut all: BTreeMap<(String, &str), Vec<f64>> = BTreeMap::new();
    let mut note = |who, left: Left| {
        for line in left.out.lines() {
            let (what, micros) = line.split_once(' ').unwrap();
            all.entry((what.to_owned(), who)).or_default().push(micros.parse().unwrap());
        }
    };
    for _ in 0..RUNS {
        let full = Pool::new(server.address, Setup { warm: 420, refill: false, looks: true });
        full.tally(); // it has been filled
        note("1 natively", natively(&mut command));
        note("2 through, nothing warm", empty.run(&mut command));
        note("3 through, warm", full.run(&mut command));
        assert_eq!(full.given(), 400, "{:?}", full.tally());
    }
    for ((what, who), mut micros) in all {
        micros.sort_by(f64::total_cmp);
        println!("{what:10} {who:24} {:6.1} µs ({:.1} to {:.1})", micros[RUNS / 2], micros[0], micros[RUNS - 1]);
    }
}
