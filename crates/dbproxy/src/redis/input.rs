//! A client's bytes, split into commands.

use bytes::BytesMut;

use super::frame::{MalformedResp, RespFramer};

/// A longer command is forwarded before all of it has arrived.
const MAX_WHOLE_COMMAND_BYTES: usize = 64 * 1024;

/// Bytes from the client that are not processed yet.
#[derive(Default)]
pub(super) struct RedisInput {
    pub(super) bytes: BytesMut,
    frames: RespFramer,
    /// Bytes of `bytes` that the framer has seen.
    framed_bytes: usize,
    /// The command that was found and not taken.
    found: Option<CommandSpan>,
    /// The rest of a long command is being forwarded.
    pub(super) is_streaming: bool,
    /// The client waits for outstanding replies, not for more input.
    pub(super) is_waiting: bool,
}

/// A command at the beginning of the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CommandSpan {
    pub(super) length: usize,
    pub(super) is_whole: bool,
}

impl RedisInput {
    /// Returns the next command once all of it, or a long beginning, has arrived.
    pub(super) fn next_command(&mut self) -> Result<Option<CommandSpan>, MalformedResp> {
        // Inline commands begin with any byte but `*`. They count only at the start of a command,
        // not within one.
        if self.bytes.first().is_some_and(|first| *first != b'*') && self.framed_bytes == 0 {
            return self.inline_command();
        }
        // The framer must see each byte once, so a found command is kept until it is taken.
        if self.found.is_none() {
            let (used, value) = self.frames.step(&self.bytes[self.framed_bytes..])?;
            let whole = value.is_some();
            self.framed_bytes += used;
            self.found =
                (whole || self.framed_bytes >= MAX_WHOLE_COMMAND_BYTES).then_some(CommandSpan {
                    length: self.framed_bytes,
                    is_whole: whole,
                });
        }
        Ok(self.found)
    }

    /// Finds an inline command, as typed with telnet.
    fn inline_command(&self) -> Result<Option<CommandSpan>, MalformedResp> {
        let end = memchr::memchr(b'\n', &self.bytes);
        // Without a bound a client that never ends its line would fill the memory.
        if end.is_none() && self.bytes.len() >= MAX_WHOLE_COMMAND_BYTES {
            return Err(MalformedResp);
        }
        Ok(end.map(|end| CommandSpan {
            length: end + 1,
            is_whole: true,
        }))
    }

    /// Takes a command that [`next_command`](Self::next_command) found. Returns its bytes.
    pub(super) fn take_command(&mut self, next: &CommandSpan) -> BytesMut {
        (self.framed_bytes, self.found) = (0, None);
        self.is_streaming = !next.is_whole;
        self.bytes.split_to(next.length)
    }

    /// Takes more of a long command.
    pub(super) fn take_more(&mut self) -> Result<BytesMut, MalformedResp> {
        let (used, value) = self.frames.step(&self.bytes)?;
        self.is_streaming = value.is_none();
        Ok(self.bytes.split_to(used))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_waiting_command_is_found_again() {
        let mut input = RedisInput::default();
        input
            .bytes
            .extend_from_slice(b"*1\r\n$4\r\nQUIT\r\n*1\r\n$4\r\nPING\r\nPING\r\n");
        for length in [14, 14, 6] {
            let next = CommandSpan {
                length,
                is_whole: true,
            };
            assert_eq!(input.next_command(), Ok(Some(next)));
            assert_eq!(input.next_command(), Ok(Some(next)), "it was not taken");
            assert_eq!(input.take_command(&next).len(), length);
        }
        assert_eq!(input.next_command(), Ok(None));
    }

    #[test]
    fn a_long_command_is_forwarded_before_its_end() {
        let mut input = RedisInput::default();
        let all = [
            &b"*2\r\n$3\r\nSET\r\n$100000\r\n"[..],
            &[b'x'; 100_000],
            b"\r\n",
        ]
        .concat();
        input.bytes.extend_from_slice(&all[..70_000]);
        let next = input.next_command().unwrap().unwrap();
        assert_eq!(
            next,
            CommandSpan {
                length: 70_000,
                is_whole: false
            }
        );
        input.take_command(&next);
        assert!(input.is_streaming && input.take_more().unwrap().is_empty());
        input.bytes.extend_from_slice(&all[70_000..]);
        assert_eq!(input.take_more().unwrap().len(), all.len() - 70_000);
        assert!(!input.is_streaming);
    }
}
