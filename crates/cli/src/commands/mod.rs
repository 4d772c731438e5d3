//! Commands, each in a file with its options, the calls of the API, and its output.

mod backup;
mod ca;
mod completion;
mod deploy;
mod describe;
mod invoke;
mod logs;
mod ls;
mod missing_nodes;
mod nodes;
mod pool;
mod progress;
mod readiness;
mod restore;
mod rm;
mod scale;
mod secrets;
mod stack_file;
mod status;
mod status_tables;
mod version;

use std::process::ExitCode;

pub(crate) use backup::BackupArgs;
pub(crate) use ca::CaCommand;
pub(crate) use completion::CompletionArgs;
pub(crate) use deploy::DeployArgs;
pub(crate) use describe::DescribeArgs;
pub(crate) use invoke::InvokeArgs;
pub(crate) use logs::LogsArgs;
pub(crate) use ls::LsArgs;
pub(crate) use nodes::NodesArgs;
pub(crate) use pool::PoolCommand;
pub(crate) use restore::RestoreArgs;
pub(crate) use rm::RmArgs;
pub(crate) use scale::ScaleArgs;
pub(crate) use status::StatusCommand;
pub(crate) use version::VersionArgs;

use clap::CommandFactory;

use crate::args::{Cli, Command};
use crate::exit::{CommandResult, ExitStatus};

/// Runs a command and prints its error, if any, on standard error.
pub fn run(command: Command) -> ExitCode {
    let result: CommandResult = match command {
        // A server has exit codes of its own: it does not speak the API.
        Command::Up(args) => return crate::up::run(*args),
        Command::Node(args) => return crate::up::run_node(*args),
        Command::Deploy(args) => deploy::run(&args),
        Command::Ls(args) => ls::run(&args),
        Command::Nodes(args) => nodes::run(&args),
        Command::Describe(args) => describe::run(&args),
        Command::Invoke(args) => invoke::run(&args),
        Command::Status(command) => status::run(&command),
        Command::Pool(command) => pool::run(&command),
        Command::Rendezvous(args) => crate::rendezvous::run(&args),
        Command::Logs(args) => logs::run(&args),
        Command::Scale(args) => scale::run(&args),
        Command::Rm(args) => rm::run(&args),
        Command::Backup(args) => backup::run(&args),
        Command::Restore(args) => restore::run(&args),
        Command::Ca(command) => ca::run(&command),
        Command::Doctor(args) => crate::doctor::run(&args),
        Command::Version(args) => version::run(&args),
        Command::Completion(args) => completion::run(&args, Cli::command()),
    };
    match result {
        Ok(exit) => exit.into(),
        Err(error) => {
            if !error.text.is_empty() {
                eprintln!("nearpath: {error}");
            }
            error.exit.into()
        }
    }
}

/// The exit status of a command on several functions: that of the first failure.
fn first_failure(exits: impl IntoIterator<Item = ExitStatus>) -> ExitStatus {
    exits
        .into_iter()
        .find(|exit| *exit != ExitStatus::Ok)
        .unwrap_or(ExitStatus::Ok)
}
