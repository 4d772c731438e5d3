//! `completion`: a script for a shell, made from the same definition as the command line.

use clap::CommandFactory;

use crate::args::{Cli, CompletionArgs};
use crate::exit::{Exit, Outcome};
use crate::output;

pub(super) fn run(args: &CompletionArgs) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "nearpath", &mut script);
    output::print(&String::from_utf8_lossy(&script))?;
    Ok(Exit::Ok)
}
