//! Tenants that leave their socket in any state: the next one finds nothing of it. It would if a
//! socket were handed over twice.

use std::process::{Command, Stdio};

use nearpath_testkit::skip;

use crate::harness::{PoolSetup, ProgramOutput, TestPool, run_natively};
use crate::server::LineServer;

const SEED_COUNT: u32 = 50;

fn tenant_program(name: &str, server: &LineServer, seed: u32) -> Command {
    let mut command = Command::new("python3");
    command.arg("-c").arg(include_str!("programs/tenant.py"));
    command.args([name, &server.address.port().to_string(), &seed.to_string()]);
    command
}

fn has_python() -> bool {
    let tried = Command::new("python3")
        .arg("-V")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    tried.is_ok_and(|status| status.success())
}

/// Returns what the second of two tenants sees beyond a run alone, by seed.
fn find_leaks(server: &LineServer, pool: &TestPool, seeds: u32) -> Vec<(u32, ProgramOutput)> {
    let native = run_natively(&mut tenant_program("see", server, 0));
    assert!(
        native.stdout.contains("echo mine\\nbye\\n") && native.code == Some(0),
        "{native:?}"
    );
    let one_after_the_other = |seed| {
        pool.run(&mut tenant_program("leave", server, seed));
        (seed, pool.run(&mut tenant_program("see", server, seed)))
    };
    (0..seeds)
        .map(one_after_the_other)
        .filter(|(_, output)| *output != native)
        .collect()
}

#[test]
fn the_next_tenant_finds_nothing_of_the_last() {
    if !has_python() {
        skip!("python3 is missing");
    }
    let server = LineServer::start();
    let pool = TestPool::for_server(server.address);
    let leaks = find_leaks(&server, &pool, SEED_COUNT);
    assert!(leaks.is_empty(), "{:?}", leaks.first());
    assert!(
        pool.handed_over() > u64::from(SEED_COUNT),
        "few had a warm socket: the test proves nothing: {:?}",
        pool.tally()
    );
}

#[test]
fn control_a_reused_socket_leaks_state() {
    if !has_python() {
        skip!("python3 is missing");
    }
    let server = LineServer::start();
    let pool = TestPool::new(
        server.address,
        PoolSetup {
            reuses_socket: true,
            ..PoolSetup::default()
        },
    );
    assert!(!find_leaks(&server, &pool, 10).is_empty());
}
