//! The stack file that a command works on.

use std::path::{Path, PathBuf};

use nearpath_stack::{StackContext, StackReadError, StackSpec};

use crate::exit::{CommandError, ExitStatus};

/// Returns the named file, or the one in the working directory.
pub(super) fn find(named: Option<&Path>) -> Result<PathBuf, CommandError> {
    if let Some(path) = named {
        return Ok(path.to_owned());
    }
    let defaults = ["stack.yml", "stack.yaml"].map(PathBuf::from);
    defaults.into_iter().find(|path| path.exists()).ok_or_else(|| {
        let text =
            "no stack.yml or stack.yaml in this directory: set a file with -f, or use NAME with --image or --handler";
        CommandError::new(ExitStatus::Usage, text)
    })
}

/// Reads a stack file, and prints warnings and errors on standard error.
pub(super) fn read(path: &Path, context: &dyn StackContext) -> Result<StackSpec, CommandError> {
    let fail = |text| CommandError::new(ExitStatus::BadStack, text);
    match nearpath_stack::read_stack(path, context) {
        Ok(parsed) => {
            // On standard error: `--json` owns standard output.
            eprint!("{}", parsed.warnings);
            Ok(parsed.stack)
        }
        Err(StackReadError::Unreadable(error)) => Err(fail(format!(
            "cannot read the stack file {} (-f): {error}",
            path.display()
        ))),
        Err(StackReadError::Invalid(report)) => {
            eprint!("{report}");
            Err(fail(format!(
                "{} is invalid: nothing was sent",
                path.display()
            )))
        }
    }
}
