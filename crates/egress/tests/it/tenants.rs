//! Tenants that leave their socket in any state: the next one finds none of it. It would, if a socket were ever given again.

use std::process::{Command, Stdio};

use nearpath_testkit::skip;

use crate::harness::{Left, Pool, Setup, natively};
use crate::server::Server;

const SEEDS: u32 = 50;

fn program(name: &str, server: &Server, seed: u32) -> Command {
    let mut command = Command::new("python3");
    command.arg("-c").arg(include_str!("programs/tenant.py"));
    command.args([name, &server.address.port().to_string(), &seed.to_string()]);
    command
}

fn has_python() -> bool {
    let tried = Command::new("python3").arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status();
    tried.is_ok_and(|status| status.success())
}

/// What the second of two tenants sees that he would not see alone, by seeds.
fn leaks(server: &Server, pool: &Pool, seeds: u32) -> Vec<(u32, Left)> {
    let alone = natively(&mut program("see", server, 0));
    assert!(alone.out.contains("echo mine\\nbye\\n") && alone.code == Some(0), "{alone:?}");
    let one_after_the_other = |seed| {
        pool.run(&mut program("leave", server, seed));
        (seed, pool.run(&mut program("see", server, seed)))
    };
    (0..seeds).map(one_after_the_other).filter(|(_, seen)| *seen != alone).collect()
}

#[test]
fn the_next_tenant_finds_no_option_no_byte_and_no_tls_of_the_last() {
    if !has_python() {
        skip!("python3 is missing");
    }
    let server = Server::start();
    let pool = Pool::to(server.address);
    let leaks = leaks(&server, &pool, SEEDS);
    assert!(leaks.is_empty(), "{:?}", leaks.first());
    assert!(pool.given() > u64::from(SEEDS), "few had a warm socket: the test proves nothing: {:?}", pool.tally());
}

#[test]
fn control_of_a_socket_that_is_given_again_they_find_it() {
    if !has_python() {
        skip!("python3 is missing");
    }
    let server = Server::start();
    let pool = Pool::new(server.address, Setup { again: true, ..Setup::default() });
    assert!(!leaks(&server, &pool, 10).is_empty());
}
