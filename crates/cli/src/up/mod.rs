//! `nearpath up`: reads the options, and runs the server of `nearpath-server`.
//!
//! [`args`] and [`device_args`] hold the options as typed, [`settings`] turns them into settings that are ready to use, [`banner`] is
//! printed once the server serves.

mod args;
mod banner;
mod device_args;
mod settings;

use std::process::ExitCode;

use nearpath_daemon::logs::{self, LogFormat};

pub use args::{CallerArgs, ForwardArg, Toggle, UpArgs};
pub use device_args::DeviceArgs;

/// Runs until a signal or a successor. The exit code is 0 after an orderly end, 1 if the server did not start or failed.
pub(crate) fn run(args: UpArgs) -> ExitCode {
    let log_format = if args.log_json {
        LogFormat::Json
    } else {
        LogFormat::Text
    };
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
