//! What a person or a script reads: plain aligned text, or JSON.

mod style;
mod table;

use std::io::{self, Write};

use serde::Serialize;

pub(crate) use style::{Paint, Style};
pub(crate) use table::Table;

use crate::exit::{Exit, Failure};

/// Writes to standard output. A reader that has gone (`nearpath ls | head -1`) is no error of ours: the caller ends.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|error| lost(&error))
}

/// What a failed write to standard output comes to.
pub(crate) fn lost(error: &io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::told(Exit::Ok),
        _ => Failure::new(Exit::Failed, format!("cannot write to standard output: {error}")),
    }
}

/// Writes a value as indented JSON and a newline.
pub(crate) fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value).expect("our own types can be written as JSON");
    print(&format!("{text}\n"))
}
