//! Finding and reading the stack file that a command works on.

use std::path::{Path, PathBuf};

use crate::exit::{Exit, Failure};
use crate::stack::{self, Stack, Surroundings};

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
    let fail = |error| Failure::new(Exit::BadStack, format!("cannot read {}: {error}", path.display()));
    let (stack, report) = stack::read(path, around).map_err(fail)?;
    eprint!("{report}");
    stack.ok_or_else(|| Failure::new(Exit::BadStack, format!("{} is invalid: nothing was sent", path.display())))
}
