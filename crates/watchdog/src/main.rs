//! The program: all of it is in the library, so that tests can reach its parts.

use std::process::ExitCode;

/// musl's own allocator asks the kernel for nearly every page by itself.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

fn main() -> ExitCode {
    nearpath_watchdog::main()
}
