//! Runs a program with intercepted connects, as instances do: `intercepted PROGRAM ARGUMENTS…`. Its
//! standard input is a socket to which it sends the seccomp listener. For tests and measurements
//! without a node.

use std::os::unix::process::CommandExt;
use std::process::Command;

use nearpath_kernel::seccomp::handover;

fn main() -> std::io::Result<()> {
    let mut arguments = std::env::args_os().skip(1);
    let Some(program) = arguments.next() else {
        return Err(std::io::Error::other(
            "usage: intercepted PROGRAM ARGUMENTS…",
        ));
    };
    handover::send_listener(rustix::stdio::stdin())?;
    rustix::stdio::dup2_stdin(std::fs::File::open("/dev/null")?)?;
    Err(Command::new(program).args(arguments).exec())
}
