//! `completion`: a script for a shell, generated from the definition of the command line.

use clap::Args;

use crate::exit::{CommandResult, ExitStatus};
use crate::output;

/// Options of `completion`.
#[derive(Debug, Args)]
#[allow(missing_docs)]
pub struct CompletionArgs {
    /// Complete for this shell
    pub shell: clap_complete::Shell,
}

/// `definition` is the whole command line, which this file does not know.
pub(super) fn run(args: &CompletionArgs, mut definition: clap::Command) -> CommandResult {
    // In memory first: clap panics on a closed pipe, `output::print` does not.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut definition, "nearpath", &mut script);
    output::print(&String::from_utf8_lossy(&script))?;
    Ok(ExitStatus::Ok)
}
