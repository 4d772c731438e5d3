//! `nearpath up`: controller, node and gateway in one process.
//!
//! [`args`] is what was typed, [`plan`] what is ready to use, [`footing`] what has to be there first ([`sockets`], [`network`]), [`house`] builds the parts ([`parts`]) and ties
//! them together, [`desk`] is the seam where they meet, [`identity`] says who calls and who is called, [`cpu`] what the gateway may use, [`succession`] how one process follows another, [`banner`] what is printed. Everything that can be refused (a port
//! in use, a second process on the data directory, a missing watchdog) is refused before anything is started.

mod adapters;
mod args;
mod banner;
mod cpu;
mod desk;
mod footing;
mod house;
mod identity;
mod network;
mod parts;
mod plan;
mod sockets;
mod succession;

use std::process::ExitCode;

pub use args::{Forward, UpArgs};
pub use cpu::GatewayCpu;

/// Runs until a signal ends it. Exit code 0 after an orderly end, 1 when it could not start or run.
pub fn run(args: UpArgs) -> ExitCode {
    let outcome = plan::Plan::from_args(args).and_then(|plan| {
        nearpath_daemon::logs::init(plan.log_format);
        house::live(plan)
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nearpath up: {error}");
            ExitCode::FAILURE
        }
    }
}
