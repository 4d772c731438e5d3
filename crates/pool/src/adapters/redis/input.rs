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
    /// The middle of a long command goes through.
    pub(super) streams: bool,
    /// The client waits for its turn, not for its bytes.
    pub(super) waits: bool,
}

/// A command at the beginning of the input.
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
        let (used, value) = self.frames.step(&self.bytes[self.seen..])?;
        let whole = value.is_some();
        self.seen += used;
        let next = Next { length: self.seen, whole };
        Ok((whole || self.seen >= LONG).then_some(next))
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
        self.seen = 0;
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
