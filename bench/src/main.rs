//! `nearpath-bench`: load generators and reproducible comparisons.
//!
//! [`load`] makes requests in a closed or an open loop, and [`tally`] counts their outcomes.
//! [`cpu`] reads the CPU time of the measured processes. [`compare`] compares variants:
//! interleaved, in rounds, by medians. [`peers`] starts the measured programs. [`command`] has one
//! file per subcommand. Everything runs on loopback.

mod apps;
mod audit;
mod boutique;
mod by_name;
mod census;
mod command;
mod compare;
mod cpu;
mod load;
mod nodes;
mod p2p;
mod peers;
mod pool;
mod remote;
mod shm_ring;
mod tally;

use std::process::ExitCode;

use clap::Parser;

/// The allocator of `nearpath`: the `gateway` command must measure the shipped configuration.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Load generator and side-by-side comparisons for nearpath.
#[derive(Parser)]
#[command(name = "nearpath-bench", version)]
struct BenchArgs {
    #[command(subcommand)]
    command: command::BenchCommand,
}

fn main() -> ExitCode {
    // Before anything is spawned, since children inherit the limit.
    raise_file_limit();
    match command::run(BenchArgs::parse().command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("nearpath-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Hundreds of connections need more files than the usual soft limit of 1024. Children inherit it.
fn raise_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Best effort: without it, connections fail later and are counted as failures.
    let _ = setrlimit(Resource::Nofile, limit); // if not, connections fail later and are counted as such
}
