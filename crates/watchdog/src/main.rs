//! The program: all of it is in the library, so that tests can reach its parts.

use std::process::ExitCode;

fn main() -> ExitCode {
    nearpath_watchdog::main()
}
