//! Output of the tenant, line by line: prefixed, bounded and passed on; the last lines are kept for
//! error messages.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::BytesMut;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;

use crate::logs::{OutputSink, OutputStream, timestamp};

/// Bytes per read.
const CHUNK_BYTES: usize = 8 * 1024;
/// Number of lines kept for error messages, and bytes of each.
const TAIL_LIMITS: (usize, usize) = (10, 400);

/// Writer of the tenant's output.
#[derive(Debug)]
pub(crate) struct TenantOutput {
    stdout: OutputSink,
    stderr: OutputSink,
    has_prefix: bool,
    max_line_bytes: Option<usize>,
}

/// Last lines of output.
#[derive(Debug, Clone, Default)]
pub(crate) struct OutputTail(Arc<Mutex<VecDeque<String>>>);

impl OutputTail {
    fn push_line(&self, line: &[u8]) {
        let line = String::from_utf8_lossy(&line[..line.len().min(TAIL_LIMITS.1)])
            .trim_end()
            .to_owned();
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Bounded, because the tail lives as long as the process.
        if lines.len() == TAIL_LIMITS.0 {
            lines.pop_front();
        }
        lines.push_back(line);
    }

    /// Returns all lines in one.
    pub(crate) fn joined_lines(&self) -> String {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines
            .iter()
            .map(String::as_str)
            .collect::<Vec<_>>()
            .join(" | ")
    }
}

impl TenantOutput {
    /// Creates the writer. Must be called inside the runtime.
    pub(crate) fn new(has_prefix: bool, max_line_bytes: Option<usize>) -> Self {
        Self {
            stdout: OutputSink::open_stream(OutputStream::Stdout),
            stderr: OutputSink::open_stream(OutputStream::Stderr),
            has_prefix,
            max_line_bytes,
        }
    }

    /// Writes a line of the watchdog among the tenant's.
    pub(crate) async fn write_line(&self, text: &str) {
        let mut line = Vec::with_capacity(text.len() + 32);
        self.append_line(&mut line, text.as_bytes(), &format!("{} ", timestamp()));
        self.stdout.write(&line).await;
    }

    /// Copies lines until the pipe ends.
    pub(crate) async fn copy_lines(
        &self,
        mut from: pipe::Receiver,
        stream: OutputStream,
        tail: Option<OutputTail>,
    ) {
        let sink = match stream {
            OutputStream::Stdout => &self.stdout,
            OutputStream::Stderr => &self.stderr,
        };
        let mut buffer = BytesMut::new();
        let mut ready = Vec::new();
        loop {
            buffer.reserve(CHUNK_BYTES);
            // An error ends the copying like the end of the pipe: nothing more will come.
            let ended = !matches!(from.read_buf(&mut buffer).await, Ok(n) if n > 0);
            // Once per read: lines that arrive together share their time.
            let prefix = format!("{} {}: ", timestamp(), stream.name());
            while let Some(line) = cut_line(&mut buffer, self.max_line_bytes, ended) {
                self.append_line(&mut ready, &line, &prefix);
                if let Some(tail) = &tail {
                    tail.push_line(&line);
                }
            }
            // All lines of a read in one write, which costs one system call.
            sink.write(&ready).await;
            ready.clear();
            if ended {
                return;
            }
        }
    }

    fn append_line(&self, out: &mut Vec<u8>, line: &[u8], prefix: &str) {
        if self.has_prefix {
            out.extend_from_slice(prefix.as_bytes());
        }
        out.extend_from_slice(line.strip_suffix(b"\n").unwrap_or(line));
        out.push(b'\n');
    }
}

/// Takes the next line: up to a line feed, the max_bytes piece, or the end.
pub fn cut_line(buffer: &mut BytesMut, max_bytes: Option<usize>, ended: bool) -> Option<BytesMut> {
    let max_bytes = max_bytes.unwrap_or(usize::MAX);
    let window = &buffer[..buffer.len().min(max_bytes)];
    match window.iter().position(|byte| *byte == b'\n') {
        Some(at) => Some(buffer.split_to(at + 1)),
        None if buffer.len() >= max_bytes => Some(buffer.split_to(max_bytes)),
        None if ended && !buffer.is_empty() => Some(buffer.split()),
        None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cut_lines(text: &[u8], max_bytes: Option<usize>) -> Vec<Vec<u8>> {
        let mut held = BytesMut::from(text);
        std::iter::from_fn(|| cut_line(&mut held, max_bytes, true))
            .map(|line| line.to_vec())
            .collect()
    }

    #[test]
    fn lines_are_whole_or_split_at_the_limit() {
        assert_eq!(cut_lines(b"a\nbc\nd", None), [&b"a\n"[..], b"bc\n", b"d"]);
        assert_eq!(
            cut_lines(b"abcdefg\n", Some(3)),
            [&b"abc"[..], b"def", b"g\n"]
        );
        let mut half = BytesMut::from(&b"half"[..]);
        assert_eq!(cut_line(&mut half, None, false), None);
    }

    #[test]
    fn the_tail_keeps_the_last_lines() {
        let tail = OutputTail::default();
        (0..30).for_each(|n| tail.push_line(format!("{n}\n").as_bytes()));
        assert_eq!(
            tail.joined_lines(),
            "20 | 21 | 22 | 23 | 24 | 25 | 26 | 27 | 28 | 29"
        );
    }

    proptest! {
        #[test]
        fn no_byte_is_lost(text in prop::collection::vec(prop_oneof![Just(b'\n'), any::<u8>()], 0..200), max_bytes in 1usize..20) {
            prop_assert_eq!(cut_lines(&text, Some(max_bytes)).concat(), text);
        }
    }
}
