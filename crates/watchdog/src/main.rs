//! Program entry. The library holds everything else, so that tests and fuzz targets can reach it.

use std::process::ExitCode;

/// musl's own allocator makes a system call for nearly every page.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

fn main() -> ExitCode {
    nearpath_watchdog::main()
}
