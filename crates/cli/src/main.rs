//! `nearpath`: one binary for the server and for its users.

use std::process::ExitCode;

use clap::Parser;

/// The gateway makes dozens of small allocations per connection. With the C library's allocator, a
/// new connection takes about a sixth more CPU time (`nearpath-bench edge`).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // Before any argument is parsed: this hidden command runs once per instance, between fork and
    // watchdog, and must be fast.
    if std::env::args_os()
        .nth(1)
        .is_some_and(|word| word == "instance-init")
    {
        return nearpath_kernel::sandbox::instance_init();
    }
    nearpath_cli::run(nearpath_cli::args::Cli::parse().command)
}
