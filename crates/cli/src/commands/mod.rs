//! One file a command: typed words in, calls of the API, an [`Outcome`] out.

mod chain;
mod completion;
mod deploy;
mod describe;
mod invoke;
mod logs;
mod ls;
mod pool;
mod progress;
mod readiness;
mod rm;
mod scale;
mod secrets;
mod stack_file;
mod version;

use std::process::ExitCode;

use crate::args::Command;
use crate::exit::{Exit, Outcome};

/// Runs a command and tells a failure on standard error.
pub fn run(command: Command) -> ExitCode {
    let outcome: Outcome = match command {
        Command::Up(args) => return crate::up::run(*args),
        Command::Deploy(args) => deploy::run(&args),
        Command::Ls(args) => ls::run(&args),
        Command::Describe(args) => describe::run(&args),
        Command::Invoke(args) => invoke::run(&args),
        Command::Paths(args) => chain::paths(&args),
        Command::Edges(args) => chain::edges(&args),
        Command::Memory(args) => chain::memory(&args),
        Command::Pool(command) => pool::run(&command),
        Command::Rendezvous(args) => crate::rendezvous::run(&args),
        Command::Logs(args) => logs::run(&args),
        Command::Scale(args) => scale::run(&args),
        Command::Rm(args) => rm::run(&args),
        Command::Doctor(args) => crate::doctor::run(&args),
        Command::Version(args) => version::run(&args),
        Command::Completion(args) => completion::run(&args),
    };
    match outcome {
        Ok(exit) => exit.into(),
        Err(failure) => {
            if !failure.text.is_empty() {
                eprintln!("nearpath: {failure}");
            }
            failure.exit.into()
        }
    }
}

/// What a command that did all it could ends in: the first failure's code, after all have been told.
fn worst(exits: impl IntoIterator<Item = Exit>) -> Exit {
    exits.into_iter().find(|exit| *exit != Exit::Ok).unwrap_or(Exit::Ok)
}
