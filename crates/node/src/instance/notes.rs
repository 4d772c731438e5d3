//! Notes that an instance's init and watchdog write to the notes pipe; see `contract/notes.md`.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use nearpath_kernel::sandbox;
use nearpath_types::StartPhase;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;

/// Maximum length of a line in bytes; the rest is ignored.
const MAX_LINE_BYTES: usize = 4_096;

/// A note about the start of an instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InstanceNote {
    /// A phase of the start ended.
    Phase(StartPhase),
    /// The tenant's own server may be called without the watchdog.
    Server(ServerNote),
    /// The instance may be called.
    Ready,
    /// The start failed; the text is for the tenant.
    Failed(String),
    /// The kernel killed a call's process for lack of memory, and the instance goes on.
    OomKill,
    /// A remark on the running instance; the text is for the tenant.
    Remark(String),
}

/// Address and limits of a tenant's own server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerNote {
    /// Address on the instance's loopback.
    pub addr: SocketAddr,
    /// Maximum duration of a call; `None`: no limit.
    pub exec_timeout: Option<Duration>,
    /// Path in front of every request's own.
    pub base_path: String,
}

impl InstanceNote {
    /// Returns whether only the watchdog writes such a note, and not `instance-init` before it.
    pub fn is_of_watchdog(&self) -> bool {
        match self {
            Self::Phase(phase) => ["watchdog", "handler"].contains(&phase.name.as_str()),
            Self::Server(_) | Self::Ready | Self::OomKill | Self::Remark(_) => true,
            Self::Failed(_) => false,
        }
    }
}

/// Parses a line; `None` for an unknown one.
///
/// After the watchdog's start, lines come from inside the instance. Names are therefore restricted
/// to a plain alphabet, and texts lose their control characters.
pub fn parse_line(line: &str) -> Option<InstanceNote> {
    match sandbox::StartNote::parse_line(line)? {
        sandbox::StartNote::Ready => Some(InstanceNote::Ready),
        sandbox::StartNote::OomKill => Some(InstanceNote::OomKill),
        sandbox::StartNote::Remark(text) => Some(InstanceNote::Remark(readable(&text))),
        sandbox::StartNote::Failed(text) => Some(InstanceNote::Failed(readable(&text))),
        sandbox::StartNote::Server {
            addr,
            exec_timeout,
            base_path,
        } => {
            // Other addresses would lead out of the instance, where its own rules end.
            let is_usable = addr.ip().is_loopback() && is_base_path(&base_path);
            is_usable.then(|| {
                InstanceNote::Server(ServerNote {
                    addr,
                    exec_timeout: Some(exec_timeout).filter(|limit| !limit.is_zero()),
                    base_path,
                })
            })
        }
        sandbox::StartNote::Phase { name, took } => {
            is_plain(&name).then_some(InstanceNote::Phase(StartPhase { name, took }))
        }
    }
}

/// Returns whether a path may stand in front of a request's own (RFC 3986 section 3.3). It becomes
/// a part of every request.
fn is_base_path(path: &str) -> bool {
    let is_allowed =
        |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/!$&'()*+,;=:@%".contains(&byte);
    (path.is_empty() || path.starts_with('/')) && path.bytes().all(is_allowed)
}

fn is_plain(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 32
        && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')
}

/// Makes a tenant's text safe for messages: without control characters, and of limited length.
pub fn readable(text: &str) -> String {
    text.chars()
        .filter(|c| !c.is_control())
        // Texts end up in statuses and logs, which hold one line for each instance.
        .take(1_000)
        .collect()
}

/// Reads notes from the pipe.
#[derive(Debug)]
pub struct NoteReader {
    pipe: pipe::Receiver,
    pending: Vec<u8>,
}

impl NoteReader {
    /// Reads from `pipe`. Needs a running runtime.
    ///
    /// # Errors
    /// Fails when it is not a pipe or cannot be registered.
    pub fn new(pipe: OwnedFd) -> io::Result<Self> {
        Ok(Self {
            pipe: pipe::Receiver::from_owned_fd(pipe)?,
            pending: Vec::new(),
        })
    }

    /// Returns the next note; `None` at the end of the pipe. Cancellation loses nothing.
    pub async fn next_note(&mut self) -> Option<InstanceNote> {
        loop {
            while let Some(line) = self.take_line() {
                if let Some(note) = parse_line(&line) {
                    return Some(note);
                }
            }
            if !matches!(self.pipe.read_buf(&mut self.pending).await, Ok(n) if n > 0) {
                return None;
            }
        }
    }

    fn take_line(&mut self) -> Option<String> {
        let Some(end) = self.pending.iter().position(|b| *b == b'\n') else {
            // An endless line must not fill the node's memory.
            self.pending.truncate(MAX_LINE_BYTES);
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

    #[test]
    fn only_the_known_kinds_are_parsed() {
        let took = Duration::from_nanos(1_500);
        assert_eq!(
            parse_line("phase root 1500"),
            Some(InstanceNote::Phase(StartPhase {
                name: "root".into(),
                took
            }))
        );
        assert_eq!(parse_line("ready"), Some(InstanceNote::Ready));
        assert_eq!(parse_line("oom_kill"), Some(InstanceNote::OomKill));
        assert_eq!(
            parse_line("remark a server\x1b[2J"),
            Some(InstanceNote::Remark("a server[2J".into()))
        );
        assert_eq!(
            parse_line("failed no such file: ./run\x1b[2J"),
            Some(InstanceNote::Failed("no such file: ./run[2J".into()))
        );
        assert!(matches!(
            parse_line("server 127.0.0.1:80 0 "),
            Some(InstanceNote::Server(ServerNote {
                exec_timeout: None,
                ..
            }))
        ));
        for other in [
            "",
            "server 10.0.0.1:80 0 ",
            "server 127.0.0.1:80 0 /a b",
            "server 127.0.0.1:80 0 a",
            "ready now",
            "phase",
            "phase x",
            "phase x -1",
            "phase X{}\" 1",
            "hello",
        ] {
            assert_eq!(parse_line(other), None, "{other}");
        }
    }

    #[tokio::test]
    async fn a_line_in_pieces_is_reassembled() {
        let (read, mut write) = std::io::pipe().unwrap();
        let mut notes = NoteReader::new(read.into()).unwrap();
        write.write_all(b"noise\npha").unwrap();
        let stopped = tokio::time::timeout(Duration::from_millis(1), notes.next_note()).await;
        assert!(stopped.is_err(), "there is no note yet");
        write.write_all(b"se root 7\nready\nfailed cut").unwrap();
        drop(write);
        let took = Duration::from_nanos(7);
        assert_eq!(
            notes.next_note().await,
            Some(InstanceNote::Phase(StartPhase {
                name: "root".into(),
                took
            }))
        );
        assert_eq!(notes.next_note().await, Some(InstanceNote::Ready));
        assert_eq!(notes.next_note().await, None);
    }

    proptest! {
        #[test]
        fn texts_lose_their_control_characters(line in ".{0,200}") {
            if let Some(InstanceNote::Failed(text)) = parse_line(&line) {
                prop_assert!(!text.contains(char::is_control));
            }
        }
    }
}
