//! Notes to the node about the instance, on the pipe whose number is in `NEARPATH_NOTES_FD`: `phase
//! NAME NANOSECONDS`, `ready`, `failed TEXT`, `oom_kill`, `remark TEXT`. Without that variable they
//! go nowhere.

use std::fs::File;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

/// Maximum bytes of a note; the pipe holds 64 KiB (pipe(7)), and nothing may read it yet.
const MAX_NOTE_BYTES: usize = 4096;

/// Writing end of the pipe, if there is one. A note that cannot be written is lost: the node sees
/// the end of the pipe. Clones share the pipe.
#[derive(Debug, Clone, Default)]
pub(crate) struct StartNotes(Option<Arc<File>>);

impl StartNotes {
    /// Creates the writer of this pipe.
    pub(crate) fn new(pipe: Option<File>) -> Self {
        Self(pipe.map(Arc::new))
    }

    /// Reports that a phase of the start ended after `took`.
    pub(crate) fn write_phase(&self, name: &str, took: Duration) {
        self.write_line(&format!("phase {name} {}\n", took.as_nanos()));
    }

    /// Reports that the instance may be called.
    pub(crate) fn write_ready(&self) {
        self.write_line("ready\n");
    }

    /// Reports that the start failed; `text` becomes one line.
    pub(crate) fn write_failure(&self, text: &str) {
        self.write_line(&failure_line(text));
    }

    /// Reports that the kernel has killed a call's process for lack of memory.
    pub(crate) fn write_oom_kill(&self) {
        self.write_line("oom_kill\n");
    }

    /// Reports a remark on the running instance; `text` becomes one line.
    pub(crate) fn write_remark(&self, text: &str) {
        self.write_line(&note_line("remark ", text));
    }

    fn write_line(&self, line: &str) {
        if let Some(pipe) = &self.0 {
            // The node may have closed the pipe, and the instance starts all the same.
            let _ = (&**pipe).write_all(line.as_bytes());
        }
    }
}

/// Returns the note of a failed start.
pub fn failure_line(text: &str) -> String {
    note_line("failed ", text)
}

fn note_line(kind: &str, text: &str) -> String {
    let mut line = String::from(kind);
    for c in text.trim_end().chars() {
        if line.len() >= MAX_NOTE_BYTES {
            break;
        }
        // A line feed in the text would begin another note.
        line.push(if c.is_control() { ' ' } else { c });
    }
    line.push('\n');
    line
}
