//! The program that tests run as an instance: the child's side only.

use std::process::ExitCode;

fn main() -> ExitCode {
    nearpath_kernel::sandbox::instance_init()
}
