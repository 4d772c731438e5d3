//! Notes: what a starting instance tells the node, line by line, over a pipe. The format is in `contract/notes.md`.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// The descriptor on which the watchdog finds the pipe.
pub const NOTES_FD: i32 = 3;
/// The environment variable that says so.
pub const NOTES_FD_VARIABLE: &str = "NEARPATH_NOTES_FD";
/// The descriptor on which the watchdog is told who it is.
pub(super) const IDENTITY_FD: i32 = 4;
/// The environment variable that says so.
pub(super) const IDENTITY_FD_VARIABLE: &str = "NEARPATH_IDENTITY_FD";

/// One line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Note {
    /// A phase of the start ended.
    Phase {
        /// `init`, `cgroup`, `network`, `root`, `lockdown`, `watchdog`, `handler`; others may come.
        name: String,
        /// How long it took.
        took: Duration,
    },
    /// The instance may be called.
    Ready,
    /// The start failed; the text is for the tenant.
    Failed(String),
}

impl Note {
    /// Reads a line; `None` for one that is not known, which is to be passed over.
    pub fn parse(line: &str) -> Option<Note> {
        let line = line.trim_end_matches(['\r', '\n']);
        match line.split_once(' ') {
            None if line == "ready" => Some(Note::Ready),
            Some(("failed", text)) => Some(Note::Failed(text.to_owned())),
            Some(("phase", rest)) => {
                let (name, nanos) = rest.split_once(' ')?;
                Some(Note::Phase { name: name.to_owned(), took: Duration::from_nanos(nanos.parse().ok()?) })
            }
            _ => None,
        }
    }
}

/// The child's end. A node that has gone away is no reason to fail: the child dies with it anyway.
pub(super) struct Notes {
    pipe: File,
    since: Instant,
}

impl Notes {
    pub(super) fn new(pipe: OwnedFd) -> Self {
        Self { pipe: pipe.into(), since: Instant::now() }
    }

    /// Ends a phase and begins the next one.
    pub(super) fn phase(&mut self, name: &str) {
        let nanos = self.since.elapsed().as_nanos();
        self.line(&format!("phase {name} {nanos}\n"));
        self.since = Instant::now();
    }

    /// Says why there will be no instance.
    pub(super) fn failed(&mut self, why: &str) {
        self.line(&format!("failed {}\n", why.replace(['\n', '\r'], " ")));
    }

    fn line(&mut self, text: &str) {
        let _ = self.pipe.write_all(text.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_lines_are_read_and_others_passed_over() {
        let took = Duration::from_nanos(1_500);
        assert_eq!(Note::parse("phase root 1500\n"), Some(Note::Phase { name: "root".into(), took }));
        assert_eq!(Note::parse("ready"), Some(Note::Ready));
        assert_eq!(Note::parse("failed root: no /usr"), Some(Note::Failed("root: no /usr".into())));
        for unknown in ["", "readyish", "phase root", "phase root x", "hello world"] {
            assert_eq!(Note::parse(unknown), None, "{unknown}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_answered(line in ".{0,60}") {
            let _ = Note::parse(&line);
        }
    }
}
