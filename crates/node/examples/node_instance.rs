//! The program that the tests' nodes start as instances: the child's side and nothing else.

use std::process::ExitCode;

fn main() -> ExitCode {
    nearpath_kernel::sandbox::instance_init()
}
