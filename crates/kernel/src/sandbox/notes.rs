//! Notes that a starting instance sends to the node, line by line over a pipe. The format is in
//! `contract/notes.md`.

use std::fs::File;
use std::io::Write;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// Descriptor of the pipe in the watchdog.
pub const NOTES_FD: i32 = 3;
/// Environment variable with that number.
pub const NOTES_FD_VARIABLE: &str = "NEARPATH_NOTES_FD";
/// Descriptor of the identity socket in the watchdog.
pub(super) const IDENTITY_FD: i32 = 4;
/// Environment variable with that number.
pub(super) const IDENTITY_FD_VARIABLE: &str = "NEARPATH_IDENTITY_FD";
/// Descriptor of the file that counts processes killed for lack of memory.
pub(super) const OOM_KILL_FD: i32 = 5;
/// Environment variable with that number; missing where the kernel does not count them.
pub(super) const OOM_KILL_FD_VARIABLE: &str = "NEARPATH_OOM_KILL_FD";

/// A line of the pipe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StartNote {
    /// A phase of the start ended.
    Phase {
        /// `init`, `cgroup`, `network`, `root`, `lockdown`, `watchdog` or `handler`; others may
        /// follow.
        name: String,
        /// Duration of the phase.
        took: Duration,
    },
    /// The tenant's own server may be called without the watchdog.
    Server {
        /// Its address inside the instance.
        addr: SocketAddr,
        /// Maximum duration of a call; zero: none.
        exec_timeout: Duration,
        /// Path in front of every request's own; may be empty.
        base_path: String,
    },
    /// The instance may be called.
    Ready,
    /// The start failed; the text is for the tenant.
    Failed(String),
    /// A process of a call was killed for lack of memory.
    OomKill,
    /// A remark on the running instance; the text is for the tenant.
    Remark(String),
}

impl StartNote {
    /// Parses a line; `None` for an unknown one, which is ignored.
    pub fn parse_line(line: &str) -> Option<StartNote> {
        let line = line.trim_end_matches(['\r', '\n']);
        match line.split_once(' ') {
            None if line == "ready" => Some(StartNote::Ready),
            None if line == "oom_kill" => Some(StartNote::OomKill),
            Some(("remark", text)) => Some(StartNote::Remark(text.to_owned())),
            Some(("failed", text)) => Some(StartNote::Failed(text.to_owned())),
            Some(("server", rest)) => {
                let mut parts = rest.splitn(3, ' ');
                Some(StartNote::Server {
                    addr: parts.next()?.parse().ok()?,
                    exec_timeout: Duration::from_nanos(parts.next()?.parse().ok()?),
                    base_path: parts.next()?.to_owned(),
                })
            }
            Some(("phase", rest)) => {
                let (name, nanos) = rest.split_once(' ')?;
                Some(StartNote::Phase {
                    name: name.to_owned(),
                    took: Duration::from_nanos(nanos.parse().ok()?),
                })
            }
            _ => None,
        }
    }
}

/// The child's end. Write errors are ignored: without the node the child ends anyway.
pub(super) struct NoteWriter {
    pipe: File,
    phase_start: Instant,
}

impl NoteWriter {
    pub(super) fn new(pipe: OwnedFd) -> Self {
        Self {
            pipe: pipe.into(),
            phase_start: Instant::now(),
        }
    }

    /// Reports the end of a phase and begins the next one.
    pub(super) fn end_phase(&mut self, name: &str) {
        let nanos = self.phase_start.elapsed().as_nanos();
        self.write_line(&format!("phase {name} {nanos}\n"));
        self.phase_start = Instant::now();
    }

    /// Reports that the start failed.
    pub(super) fn report_failure(&mut self, reason: &str) {
        self.write_line(&format!("failed {}\n", reason.replace(['\n', '\r'], " ")));
    }

    fn write_line(&mut self, text: &str) {
        let _ = self.pipe.write_all(text.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_lines_are_parsed_and_others_ignored() {
        let took = Duration::from_nanos(1_500);
        assert_eq!(
            StartNote::parse_line("phase root 1500\n"),
            Some(StartNote::Phase {
                name: "root".into(),
                took
            })
        );
        assert_eq!(StartNote::parse_line("ready"), Some(StartNote::Ready));
        assert_eq!(
            StartNote::parse_line("failed root: no /usr"),
            Some(StartNote::Failed("root: no /usr".into()))
        );
        assert_eq!(StartNote::parse_line("oom_kill"), Some(StartNote::OomKill));
        assert_eq!(
            StartNote::parse_line("remark a server\n"),
            Some(StartNote::Remark("a server".into()))
        );
        assert_eq!(
            StartNote::parse_line("server 127.0.0.1:5000 1500 /base\n"),
            Some(StartNote::Server {
                addr: "127.0.0.1:5000".parse().unwrap(),
                exec_timeout: took,
                base_path: "/base".into()
            })
        );
        for unknown in [
            "",
            "server x 1 ",
            "server [::1]:1 1",
            "readyish",
            "phase root",
            "phase root x",
            "hello world",
        ] {
            assert_eq!(StartNote::parse_line(unknown), None, "{unknown}");
        }
    }

    proptest::proptest! {
        #[test]
        fn parsing_never_panics(line in ".{0,60}") {
            let _ = StartNote::parse_line(&line);
        }
    }
}
