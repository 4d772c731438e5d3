//! `nearpath-bench`: load, and comparisons that can be believed.
//!
//! [`load`] makes requests in a closed or an open loop, [`tally`] counts what became of them,
//! [`cpu`] reads what the processes under test spent. [`compare`] is the one way to set variants
//! against each other: interleaved, in rounds, medians. [`peers`] starts what is measured,
//! [`command`] holds one file a subcommand. Everything runs on loopback.

mod apps;
mod audit;
mod boutique;
mod census;
mod command;
mod compare;
mod cpu;
mod load;
mod p2p;
mod peers;
mod pool;
mod remote;
mod shm_ring;
mod tally;

use std::process::ExitCode;

use clap::Parser;

/// As in `nearpath`: what is measured here as `gateway` has to be what is shipped.
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
