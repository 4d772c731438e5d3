//! Log output: the tenant's lines and the watchdog's own, on this process's stdout and stderr.
//!
//! A full pipe must not stop the event loop, so pipes are written without blocking and the writer
//! waits. Then the tenant's writes wait, too. Files and terminals do not block for long and are
//! written directly.

use std::fmt;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{FileType, fstat};
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;
use tokio::sync::Mutex;

/// Standard output stream of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OutputStream {
    Stdout,
    Stderr,
}

impl OutputStream {
    /// Returns its name for log prefixes.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }

    fn duplicate_fd(self) -> io::Result<OwnedFd> {
        match self {
            Self::Stdout => io::stdout().as_fd().try_clone_to_owned(),
            Self::Stderr => io::stderr().as_fd().try_clone_to_owned(),
        }
    }
}

/// Writer of one stream.
#[derive(Debug)]
pub(crate) struct OutputSink {
    stream: OutputStream,
    pipe: Option<Mutex<pipe::Sender>>,
}

impl OutputSink {
    /// Opens the stream. Must be called inside the runtime.
    pub(crate) fn open_stream(stream: OutputStream) -> Self {
        Self {
            stream,
            pipe: open_pipe(stream).ok().map(Mutex::new),
        }
    }

    /// Writes whole lines. Errors are dropped: there is nowhere to report them.
    pub(crate) async fn write(&self, bytes: &[u8]) {
        let _ = match &self.pipe {
            // Locked, so that lines of several tasks stay whole.
            Some(pipe) => pipe.lock().await.write_all(bytes).await,
            None => self.write_now(bytes),
        };
    }

    fn write_now(&self, bytes: &[u8]) -> io::Result<()> {
        match self.stream {
            OutputStream::Stdout => io::stdout().write_all(bytes),
            OutputStream::Stderr => io::stderr().write_all(bytes),
        }
    }
}

fn open_pipe(stream: OutputStream) -> io::Result<pipe::Sender> {
    // A duplicate, because tokio closes what it owns.
    let fd = stream.duplicate_fd()?;
    match FileType::from_raw_mode(fstat(&fd)?.st_mode) {
        FileType::Fifo => pipe::Sender::from_owned_fd(fd),
        _ => Err(io::ErrorKind::Unsupported.into()),
    }
}

/// Writes a line of the watchdog to stderr, if there is room for it.
pub(crate) fn write_own(line: fmt::Arguments<'_>) {
    let line = format!("nearpath-watchdog: {line}\n");
    // A single write that does not wait: a full pipe loses the line instead of stopping the loop.
    let _ = rustix::io::write(io::stderr(), line.as_bytes());
}

/// [`write_own`] with a format.
macro_rules! log_line {
    ($($text:tt)*) => { $crate::logs::write_own(format_args!($($text)*)) };
}
pub(crate) use log_line;

/// Returns the time for log prefixes, UTC: `2026/01/31 23:59:59`.
pub(crate) fn timestamp() -> String {
    jiff::Timestamp::now()
        .strftime("%Y/%m/%d %H:%M:%S")
        .to_string()
}
