//! Finding and reading the stack file that a command works on.

use std::path::{Path, PathBuf};

use nearpath_stack::{ReadError, Stack, Surroundings};

use crate::exit::{Exit, Failure};

/// The file that was named, or the one that is here.
pub(super) fn find(named: Option<&Path>) -> Result<PathBuf, Failure> {
    if let Some(path) = named {
        return Ok(path.to_owned());
    }
    let here = ["stack.yml", "stack.yaml"].map(PathBuf::from);
    here.into_iter().find(|path| path.exists()).ok_or_else(|| {
        let text =
            "no stack.yml or stack.yaml here: name a file with -f, or a function with NAME and --image or --handler";
        Failure::new(Exit::Usage, text)
    })
}

/// Reads a stack file. Everything doubtful or wrong in it is told on standard error.
pub(super) fn read(path: &Path, around: &dyn Surroundings) -> Result<Stack, Failure> {
    let fail = |text| Failure::new(Exit::BadStack, text);
    match nearpath_stack::read(path, around) {
        Ok(parsed) => {
            eprint!("{}", parsed.warnings);
            Ok(parsed.stack)
        }
        Err(ReadError::Unreadable(error)) => {
            Err(fail(format!("cannot read the stack file {} (-f): {error}", path.display())))
        }
        Err(ReadError::Invalid(report)) => {
            eprint!("{report}");
            Err(fail(format!("{} is invalid: nothing was sent", path.display())))
        }
    }
}
