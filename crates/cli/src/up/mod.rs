//! `nearpath up` and `nearpath node`: read the options, and run the server of `nearpath-server`.
//!
//! [`args`], [`device_args`] and [`node_args`] define the options, and [`settings`] checks them and
//! converts them into the server's settings. [`banner`] prints the addresses when the server is
//! ready.

mod args;
mod banner;
mod device_args;
mod node_args;
mod settings;

use std::process::ExitCode;

use nearpath_daemon::logs::{self, LogFormat};
use nearpath_server::ServerSettings;

pub use args::{CallerArgs, ForwardArg, Toggle, UpArgs};
pub use device_args::DeviceArgs;
pub use node_args::NodeArgs;

use settings::SettingsError;

/// Runs `nearpath up` until a signal, or until a new process takes over (`--take-over`). The exit
/// code is 0 after an orderly end, 1 if the server did not start or failed.
pub(crate) fn run(args: UpArgs) -> ExitCode {
    let log_format = log_format(&args);
    serve("up", log_format, settings::from_args(args))
}

/// Runs `nearpath node`, in the same way.
pub(crate) fn run_node(args: NodeArgs) -> ExitCode {
    let log_format = log_format(&args.server);
    serve("node", log_format, settings::from_node_args(args))
}

fn log_format(args: &UpArgs) -> LogFormat {
    match args.log_json {
        true => LogFormat::Json,
        false => LogFormat::Text,
    }
}

fn serve(
    command: &str,
    log_format: LogFormat,
    settings: Result<ServerSettings, SettingsError>,
) -> ExitCode {
    // Logging begins after the options are checked: their errors go to the terminal as plain text.
    let outcome = settings
        .map_err(|error| error.to_string())
        .and_then(|settings| {
            logs::init(log_format);
            nearpath_server::run(settings, banner::print).map_err(|error| error.to_string())
        });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nearpath {command}: {error}");
            ExitCode::FAILURE
        }
    }
}
