//! Measures the cost and gain of interception on this machine. Not a test: `cargo test -p
//! nearpath-egress --test it -- --ignored --nocapture cost`.

use std::collections::BTreeMap;

use nearpath_testkit::skip;

use crate::harness::{PoolSetup, ProgramOutput, TestPool, run_natively};
use crate::pass_through::{client, client_or_skip};
use crate::server::LineServer;

const RUN_COUNT: usize = 7;

/// Compares native runs, an empty pool and warm sockets, in turns.
#[test]
#[ignore = "a measurement"]
fn measure_connect_cost() {
    let server = LineServer::start();
    let mut command = client_or_skip!("cost", &server);
    let empty = TestPool::with_warm(server.address, 0);
    let mut all: BTreeMap<(String, &str), Vec<f64>> = BTreeMap::new();
    let mut record = |run, output: ProgramOutput| {
        for line in output.stdout.lines() {
            let (operation, micros) = line.split_once(' ').unwrap();
            all.entry((operation.to_owned(), run))
                .or_default()
                .push(micros.parse().unwrap());
        }
    };
    for _ in 0..RUN_COUNT {
        let full = TestPool::new(
            server.address,
            PoolSetup {
                warm: 420,
                refills: false,
                ..PoolSetup::default()
            },
        );
        full.tally(); // answered when the pool has been filled
        record("1 natively", run_natively(&mut command));
        record("2 through, nothing warm", empty.run(&mut command));
        record("3 through, warm", full.run(&mut command));
        assert_eq!(full.handed_over(), 400, "{:?}", full.tally());
    }
    for ((operation, run), mut micros) in all {
        micros.sort_by(f64::total_cmp);
        println!(
            "{operation:10} {run:24} {:6.1} µs ({:.1} to {:.1})",
            micros[RUN_COUNT / 2],
            micros[0],
            micros[RUN_COUNT - 1]
        );
    }
}

/// Measures beside a process that connects continuously with 1 % of a processor.
#[test]
#[ignore = "a measurement"]
fn measure_beside_a_throttled_process() {
    use std::io::{BufRead, BufReader};
    let server = LineServer::start();
    let mut command = client_or_skip!("cost", &server);
    let pool = TestPool::for_server(server.address);
    let mut neighbour = pool.start(&mut client_or_skip!("forever", &server));
    let mut line = String::new();
    BufReader::with_capacity(1, neighbour.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let output = pool.run(&mut command);
    println!("beside one that runs:\n{}{}", output.stdout, output.stderr);
    let group = std::path::Path::new("/sys/fs/cgroup/cpu/nearpath-throttled");
    std::fs::create_dir_all(group).unwrap();
    std::fs::write(group.join("cpu.cfs_quota_us"), "1000").unwrap();
    std::fs::write(group.join("cgroup.procs"), neighbour.id().to_string()).unwrap();
    let output = pool.run(&mut command);
    println!(
        "beside one that hardly ever does:\n{}{}",
        output.stdout, output.stderr
    );
    println!(
        "{}",
        std::fs::read_to_string(group.join("cpu.stat")).unwrap()
    );
    neighbour.kill().unwrap();
    neighbour.wait().unwrap();
    std::fs::remove_dir(group).unwrap();
}
