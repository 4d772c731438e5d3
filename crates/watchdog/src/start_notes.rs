//! Notes to the node about the start, on the pipe whose number is in `NEARPATH_NOTES_FD`: `phase NAME NANOSECONDS`, `ready`,
//! `failed TEXT`. Without that variable they go nowhere.

use std::fs::File;
use std::io::Write;
use std::time::Duration;

/// Longest text of a `failed` note in bytes; the pipe holds 64 KiB and nobody may read yet.
const MAX_FAILURE_BYTES: usize = 4096;

/// The pipe's writing end, if there is one. A note that cannot be written is lost: the node sees the end of the pipe.
#[derive(Debug, Default)]
pub(crate) struct StartNotes(Option<File>);

impl StartNotes {
    /// Notes that go into this pipe.
    pub(crate) fn new(pipe: Option<File>) -> Self {
        Self(pipe)
    }

    /// A phase of the start ended after `took`.
    pub(crate) fn write_phase(&mut self, name: &str, took: Duration) {
        self.write_line(&format!("phase {name} {}\n", took.as_nanos()));
    }

    /// The instance may be called.
    pub(crate) fn write_ready(&mut self) {
        self.write_line("ready\n");
    }

    /// The start failed; `text` becomes one line.
    pub(crate) fn write_failure(&mut self, text: &str) {
        self.write_line(&failure_line(text));
    }

    fn write_line(&mut self, line: &str) {
        if let Some(pipe) = &mut self.0 {
            let _ = pipe.write_all(line.as_bytes());
        }
    }
}

/// The line of a start that failed.
pub fn failure_line(text: &str) -> String {
    let mut line = String::from("failed ");
    for c in text.trim_end().chars() {
        if line.len() >= MAX_FAILURE_BYTES {
            break;
        }
        line.push(if c.is_control() { ' ' } else { c });
    }
    line.push('\n');
    line
}
