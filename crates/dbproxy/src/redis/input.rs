//! A client's bytes, cut into commands.

use bytes::BytesMut;

use super::frame::{Frames, Malformed};

/// A command longer than this goes on before all of it is here.
const LONG: usize = 64 * 1024;

/// What the client said and nobody has looked at.
#[derive(Default)]
pub(super) struct Input {
    pub(super) bytes: BytesMut,
    frames: Frames,
    /// So much of `bytes` has gone through `frames`.
    seen: usize,
    /// The command there was found, and not taken.
    found: Option<Next>,
    /// The middle of a long command goes through.
    pub(super) streams: bool,
    /// The client waits for its turn, not for its bytes.
    pub(super) waits: bool,
}

/// A command at the beginning of the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Next {
    pub(super) length: usize,
    pub(super) whole: bool,
}

impl Input {
    /// The next command, once all of it, or much of it, is here.
    pub(super) fn next(&mut self) -> Result<Option<Next>, Malformed> {
        if self.bytes.first().is_some_and(|first| *first != b'*') && self.seen == 0 {
            return self.line();
        }
        if self.found.is_none() {
            let (used, value) = self.frames.step(&self.bytes[self.seen..])?;
            let whole = value.is_some();
            self.seen += used;
            self.found = (whole || self.seen >= LONG).then_some(Next { length: self.seen, whole });
        }
        Ok(self.found)
    }

    /// A command as one types it.
    fn line(&self) -> Result<Option<Next>, Malformed> {
        let end = memchr::memchr(b'\n', &self.bytes);
        if end.is_none() && self.bytes.len() >= LONG {
            return Err(Malformed);
        }
        Ok(end.map(|end| Next { length: end + 1, whole: true }))
    }

    /// The command was taken; its bytes.
    pub(super) fn take(&mut self, next: &Next) -> BytesMut {
        (self.seen, self.found) = (0, None);
        self.streams = !next.whole;
        self.bytes.split_to(next.length)
    }

    /// More of a long command.
    pub(super) fn more(&mut self) -> Result<BytesMut, Malformed> {
        let (used, value) = self.frames.step(&self.bytes)?;
        self.streams = value.is_none();
        Ok(self.bytes.split_to(used))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_waits_is_found_again() {
        let mut input = Input::default();
        input.bytes.extend_from_slice(b"*1\r\n$4\r\nQUIT\r\n*1\r\n$4\r\nPING\r\nPING\r\n");
        for length in [14, 14, 6] {
            let next = Next { length, whole: true };
            assert_eq!(input.next(), Ok(Some(next)));
            assert_eq!(input.next(), Ok(Some(next)), "nobody took it");
            assert_eq!(input.take(&next).len(), length);
        }
        assert_eq!(input.next(), Ok(None));
    }

    #[test]
    fn a_long_command_goes_on_before_its_end() {
        let mut input = Input::default();
        let all = [&b"*2\r\n$3\r\nSET\r\n$100000\r\n"[..], &[b'x'; 100_000], b"\r\n"].concat();
        input.bytes.extend_from_slice(&all[..70_000]);
        let next = input.next().unwrap().unwrap();
        assert_eq!(next, Next { length: 70_000, whole: false });
        input.take(&next);
        assert!(input.streams && input.more().unwrap().is_empty());
        input.bytes.extend_from_slice(&all[70_000..]);
        assert_eq!(input.more().unwrap().len(), all.len() - 70_000);
        assert!(!input.streams);
    }
}
