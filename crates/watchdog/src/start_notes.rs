//! Notes to the node about the start, on the pipe whose number is in `NEARPATH_NOTES_FD`: `phase
//! NAME NANOSECONDS`, `ready`, `failed TEXT`. Without that variable they go nowhere.

use std::fs::File;
use std::io::Write;
use std::time::Duration;

/// Maximum bytes of a `failed` note; the pipe holds 64 KiB (pipe(7)), and nothing may read it yet.
const MAX_FAILURE_BYTES: usize = 4096;

/// Writing end of the pipe, if there is one. A note that cannot be written is lost: the node sees
/// the end of the pipe.
#[derive(Debug, Default)]
pub(crate) struct StartNotes(Option<File>);

impl StartNotes {
    /// Creates the writer of this pipe.
    pub(crate) fn new(pipe: Option<File>) -> Self {
        Self(pipe)
    }

    /// Reports that a phase of the start ended after `took`.
    pub(crate) fn write_phase(&mut self, name: &str, took: Duration) {
        self.write_line(&format!("phase {name} {}\n", took.as_nanos()));
    }

    /// Reports that the instance may be called.
    pub(crate) fn write_ready(&mut self) {
        self.write_line("ready\n");
    }

    /// Reports that the start failed; `text` becomes one line.
    pub(crate) fn write_failure(&mut self, text: &str) {
        self.write_line(&failure_line(text));
    }

    fn write_line(&mut self, line: &str) {
        if let Some(pipe) = &mut self.0 {
            // The node may have closed the pipe, and the instance starts all the same.
            let _ = pipe.write_all(line.as_bytes());
        }
    }
}

/// Returns the note of a failed start.
pub fn failure_line(text: &str) -> String {
    let mut line = String::from("failed ");
    for c in text.trim_end().chars() {
        if line.len() >= MAX_FAILURE_BYTES {
            break;
        }
        // A line feed in the text would begin another note.
        line.push(if c.is_control() { ' ' } else { c });
    }
    line.push('\n');
    line
}
