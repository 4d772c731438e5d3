//! `nearpath`: one binary for the house and for those who work with it.

use std::process::ExitCode;

use clap::Parser;

/// The gateway makes and drops dozens of small things for each connection: with the C library's allocator a new connection
/// takes about a sixth more CPU time (`nearpath-bench edge`).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // The hidden command comes first and reads no arguments: it runs once for every instance, between fork and watchdog.
    if std::env::args_os().nth(1).is_some_and(|word| word == "instance-init") {
        return nearpath_kernel::sandbox::instance_init();
    }
    nearpath_cli::run(nearpath_cli::args::Cli::parse().command)
}
