//! The tenant's output, line by line: prefixed, bounded, passed on, and the last of it remembered for error messages.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::BytesMut;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;

use crate::logs::{Sink, Stream, now};

/// Bytes that are read at once.
const CHUNK: usize = 8 * 1024;
/// Lines and bytes a line that are remembered.
const REMEMBERED: (usize, usize) = (10, 400);

/// How lines are written.
#[derive(Debug)]
pub(crate) struct Output {
    stdout: Sink,
    stderr: Sink,
    prefix: bool,
    longest: Option<usize>,
}

/// The last lines that were seen.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tail(Arc<Mutex<VecDeque<String>>>);

impl Tail {
    fn keep(&self, line: &[u8]) {
        let line = String::from_utf8_lossy(&line[..line.len().min(REMEMBERED.1)]).trim_end().to_owned();
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() == REMEMBERED.0 {
            lines.pop_front();
        }
        lines.push_back(line);
    }

    /// All of them, in one line.
    pub(crate) fn text(&self) -> String {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.iter().map(String::as_str).collect::<Vec<_>>().join(" | ")
    }
}

impl Output {
    /// Must be called inside the runtime.
    pub(crate) fn new(prefix: bool, longest: Option<usize>) -> Self {
        Self { stdout: Sink::open(Stream::Stdout), stderr: Sink::open(Stream::Stderr), prefix, longest }
    }

    /// Writes one line of our own among the tenant's.
    pub(crate) async fn line(&self, text: &str) {
        let mut line = Vec::with_capacity(text.len() + 32);
        self.put(&mut line, text.as_bytes(), &format!("{} ", now()));
        self.stdout.write(&line).await;
    }

    /// Passes lines on until the pipe ends.
    pub(crate) async fn pump(&self, mut from: pipe::Receiver, stream: Stream, tail: Option<Tail>) {
        let sink = match stream {
            Stream::Stdout => &self.stdout,
            Stream::Stderr => &self.stderr,
        };
        let mut held = BytesMut::new();
        let mut ready = Vec::new();
        loop {
            held.reserve(CHUNK);
            let ended = !matches!(from.read_buf(&mut held).await, Ok(n) if n > 0);
            let prefix = format!("{} {}: ", now(), stream.name());
            while let Some(line) = cut(&mut held, self.longest, ended) {
                self.put(&mut ready, &line, &prefix);
                if let Some(tail) = &tail {
                    tail.keep(&line);
                }
            }
            sink.write(&ready).await;
            ready.clear();
            if ended {
                return;
            }
        }
    }

    fn put(&self, out: &mut Vec<u8>, line: &[u8], prefix: &str) {
        if self.prefix {
            out.extend_from_slice(prefix.as_bytes());
        }
        out.extend_from_slice(line.strip_suffix(b"\n").unwrap_or(line));
        out.push(b'\n');
    }
}

/// Takes the next line out of what was read: up to a line feed, the longest piece, or the end.
pub fn cut(held: &mut BytesMut, longest: Option<usize>, ended: bool) -> Option<BytesMut> {
    let longest = longest.unwrap_or(usize::MAX);
    let window = &held[..held.len().min(longest)];
    match window.iter().position(|byte| *byte == b'\n') {
        Some(at) => Some(held.split_to(at + 1)),
        None if held.len() >= longest => Some(held.split_to(longest)),
        None if ended && !held.is_empty() => Some(held.split()),
        None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lines(text: &[u8], longest: Option<usize>) -> Vec<Vec<u8>> {
        let mut held = BytesMut::from(text);
        std::iter::from_fn(|| cut(&mut held, longest, true)).map(|line| line.to_vec()).collect()
    }

    #[test]
    fn lines_are_whole_or_split_at_the_limit() {
        assert_eq!(lines(b"a\nbc\nd", None), [&b"a\n"[..], b"bc\n", b"d"]);
        assert_eq!(lines(b"abcdefg\n", Some(3)), [&b"abc"[..], b"def", b"g\n"]);
        let mut half = BytesMut::from(&b"half"[..]);
        assert_eq!(cut(&mut half, None, false), None);
    }

    #[test]
    fn the_tail_keeps_the_last_lines() {
        let tail = Tail::default();
        (0..30).for_each(|n| tail.keep(format!("{n}\n").as_bytes()));
        assert_eq!(tail.text(), "20 | 21 | 22 | 23 | 24 | 25 | 26 | 27 | 28 | 29");
    }

    proptest! {
        #[test]
        fn no_byte_is_lost(text in prop::collection::vec(prop_oneof![Just(b'\n'), any::<u8>()], 0..200), longest in 1usize..20) {
            prop_assert_eq!(lines(&text, Some(longest)).concat(), text);
        }
    }
}
