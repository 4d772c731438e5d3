//! The lines that an instance's init and its watchdog write to the notes pipe; `contract/notes.md` describes them.

use std::io;
use std::os::fd::OwnedFd;

use nearpath_kernel::sandbox;
use nearpath_types::StartPhase;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;

/// The longest line that is kept; the rest of a longer one is ignored.
const LONGEST: usize = 4_096;

/// What an instance tells about its start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Note {
    /// A phase of the start ended.
    Phase(StartPhase),
    /// It may be called.
    Ready,
    /// The start failed, and why, for the tenant.
    Failed(String),
}

/// Reads one line. `None`: a line of another kind, to be passed over. What comes after the start of the watchdog is
/// written inside the instance, so names are held to a plain alphabet and texts lose their control characters.
pub fn parse(line: &str) -> Option<Note> {
    match sandbox::Note::parse(line)? {
        sandbox::Note::Ready => Some(Note::Ready),
        sandbox::Note::Failed(text) => Some(Note::Failed(readable(&text))),
        sandbox::Note::Phase { name, took } => is_plain(&name).then_some(Note::Phase(StartPhase { name, took })),
    }
}

fn is_plain(name: &str) -> bool {
    !name.is_empty() && name.len() <= 32 && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')
}

/// Text of a tenant's process that goes into our own texts: no control characters, no endless length.
pub fn readable(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(1_000).collect()
}

/// The reading end of the pipe.
#[derive(Debug)]
pub struct Notes {
    pipe: pipe::Receiver,
    pending: Vec<u8>,
}

impl Notes {
    /// Reads from `pipe`. Needs a running runtime.
    ///
    /// # Errors
    /// When it is not a pipe or cannot be registered.
    pub fn new(pipe: OwnedFd) -> io::Result<Self> {
        Ok(Self { pipe: pipe::Receiver::from_owned_fd(pipe)?, pending: Vec::new() })
    }

    /// The next note; `None` when the other end is closed. Nothing is lost when the future is dropped.
    pub async fn next(&mut self) -> Option<Note> {
        loop {
            while let Some(line) = self.line() {
                if let Some(note) = parse(&line) {
                    return Some(note);
                }
            }
            if !matches!(self.pipe.read_buf(&mut self.pending).await, Ok(n) if n > 0) {
                return None;
            }
        }
    }

    fn line(&mut self) -> Option<String> {
        let Some(end) = self.pending.iter().position(|b| *b == b'\n') else {
            self.pending.truncate(LONGEST);
            return None;
        };
        let line: Vec<u8> = self.pending.drain(..=end).collect();
        Some(String::from_utf8_lossy(&line).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write;
    use std::time::Duration;

    #[test]
    fn the_three_kinds_and_nothing_else() {
        let took = Duration::from_nanos(1_500);
        assert_eq!(parse("phase root 1500"), Some(Note::Phase(StartPhase { name: "root".into(), took })));
        assert_eq!(parse("ready"), Some(Note::Ready));
        assert_eq!(parse("failed no such file: ./run\x1b[2J"), Some(Note::Failed("no such file: ./run[2J".into())));
        for other in ["", "ready now", "phase", "phase x", "phase x -1", "phase X{}\" 1", "hello"] {
            assert_eq!(parse(other), None, "{other}");
        }
    }

    #[tokio::test]
    async fn lines_in_pieces_are_put_together() {
        let (read, mut write) = std::io::pipe().unwrap();
        let mut notes = Notes::new(read.into()).unwrap();
        write.write_all(b"noise\npha").unwrap();
        let stopped = tokio::time::timeout(Duration::from_millis(1), notes.next()).await;
        assert!(stopped.is_err(), "there is no note yet");
        write.write_all(b"se root 7\nready\nfailed cut").unwrap();
        drop(write);
        let took = Duration::from_nanos(7);
        assert_eq!(notes.next().await, Some(Note::Phase(StartPhase { name: "root".into(), took })));
        assert_eq!(notes.next().await, Some(Note::Ready));
        assert_eq!(notes.next().await, None);
    }

    proptest! {
        #[test]
        fn any_line_is_answered(line in ".{0,200}") {
            if let Some(Note::Failed(text)) = parse(&line) {
                prop_assert!(!text.contains(char::is_control));
            }
        }
    }
}
