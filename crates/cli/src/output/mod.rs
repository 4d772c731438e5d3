//! Output for people and scripts: aligned text, or JSON.

mod style;
mod table;

use std::io::{self, Write};

use serde::Serialize;

pub(crate) use style::{TextMeaning, TextStyle};
pub(crate) use table::TextTable;

use crate::exit::{CommandError, ExitStatus};

/// Writes to standard output.
pub(crate) fn print(text: &str) -> Result<(), CommandError> {
    // Not `print!`, which panics when the reader has left.
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|error| write_error(&error))
}

/// The error of a failed write to standard output.
pub(crate) fn write_error(error: &io::Error) -> CommandError {
    match error.kind() {
        // A reader that left (`nearpath ls | head -1`) has all it wants: the command ends as if it
        // were done.
        io::ErrorKind::BrokenPipe => CommandError::silent(ExitStatus::Ok),
        _ => CommandError::new(
            ExitStatus::Failed,
            format!("cannot write to standard output: {error}"),
        ),
    }
}

/// Writes a value as indented JSON and a newline.
pub(crate) fn print_json(value: &impl Serialize) -> Result<(), CommandError> {
    let text = serde_json::to_string_pretty(value).expect("our own types can be written as JSON");
    print(&format!("{text}\n"))
}
