//! Notes to the node about the instance, on the pipe whose number is in `NEARPATH_NOTES_FD`: `phase
//! NAME NANOSECONDS`, `server ADDRESS NANOSECONDS PATH`, `ready`, `failed TEXT`, `oom_kill`, `remark TEXT`. Without that variable they
//! go nowhere.

use std::fs::File;
use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

/// Maximum bytes of a note: a pipe takes so many as a whole or not at all (`PIPE_BUF`, pipe(7)).
const MAX_NOTE_BYTES: usize = 4096;

/// Writing end of the pipe, if there is one. Clones share the pipe.
///
/// A note that cannot be written is lost. If the node has closed the pipe, no process needs it. The
/// pipe has room for all notes of a start. A full one holds many remarks and kills already, and the
/// kernel counts the kills.
#[derive(Debug, Clone, Default)]
pub(crate) struct StartNotes(Option<Arc<File>>);

impl StartNotes {
    /// Creates the writer of this pipe. It never blocks: calls are served by the same thread.
    pub(crate) fn new(pipe: Option<File>) -> Self {
        if let Some(pipe) = &pipe {
            // It fails only for an invalid descriptor, which loses every note anyway.
            let _ = fcntl_getfl(pipe).and_then(|flags| fcntl_setfl(pipe, flags | OFlags::NONBLOCK));
        }
        Self(pipe.map(Arc::new))
    }

    /// Reports that a phase of the start ended after `took`.
    pub(crate) fn write_phase(&self, name: &str, took: Duration) {
        self.write_line(&format!("phase {name} {}\n", took.as_nanos()));
    }

    /// Reports the tenant's own server, which may be called without this program.
    pub(crate) fn write_server(
        &self,
        addr: SocketAddr,
        exec_timeout: Option<Duration>,
        base_path: &str,
    ) {
        let nanos = exec_timeout.unwrap_or_default().as_nanos();
        self.write_line(&format!("server {addr} {nanos} {base_path}\n"));
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
            // See the documentation of the type.
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
        // The line feed counts too.
        if line.len() + c.len_utf8() >= MAX_NOTE_BYTES {
            break;
        }
        // A line feed in the text would begin another note.
        line.push(if c.is_control() { ' ' } else { c });
    }
    line.push('\n');
    line
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    #[test]
    fn a_full_pipe_loses_whole_notes_and_does_not_block() {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let (done, written) = mpsc::channel();
        thread::spawn(move || {
            let notes = StartNotes::new(Some(File::from(std::os::fd::OwnedFd::from(writer))));
            for _ in 0..100 {
                notes.write_remark(&"\u{fc}".repeat(MAX_NOTE_BYTES));
            }
            done.send(()).unwrap();
        });
        written.recv_timeout(Duration::from_secs(30)).unwrap();
        let mut all = String::new();
        reader.read_to_string(&mut all).unwrap();
        assert!(all.lines().count() < 100, "some are lost");
        assert!(
            all.lines()
                .all(|line| line.starts_with("remark ") && line.len() < MAX_NOTE_BYTES)
        );
    }
}
