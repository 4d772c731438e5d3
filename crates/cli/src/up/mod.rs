//! `nearpath up`: reads the options, and runs the server of `nearpath-server`.
//!
//! [`args`] and [`device_args`] define the options, and [`settings`] checks them and converts them
//! into the server's settings. [`banner`] prints the addresses when the server is ready.

mod args;
mod banner;
mod device_args;
mod settings;

use std::process::ExitCode;

use nearpath_daemon::logs::{self, LogFormat};

pub use args::{CallerArgs, ForwardArg, Toggle, UpArgs};
pub use device_args::DeviceArgs;

/// Runs until a signal, or until a new process takes over (`--take-over`). The exit code is 0 after
/// an orderly end, 1 if the server did not start or failed.
pub(crate) fn run(args: UpArgs) -> ExitCode {
    let log_format = if args.log_json {
        LogFormat::Json
    } else {
        LogFormat::Text
    };
    // Logging begins after the options are checked: their errors go to the terminal as plain text.
    let outcome = settings::from_args(args)
        .map_err(|error| error.to_string())
        .and_then(|settings| {
            logs::init(log_format);
            nearpath_server::run(settings, banner::print).map_err(|error| error.to_string())
        });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nearpath up: {error}");
            ExitCode::FAILURE
        }
    }
}
