//! Lines of a stream that arrives in pieces of any size.

use bytes::{Bytes, BytesMut};

use super::MAX_LINE_BYTES;

/// Error of a line that is longer than [`MAX_LINE_BYTES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a line is longer than {MAX_LINE_BYTES} bytes")]
pub struct LineTooLong;

/// Bytes of a stream that are not yet a complete line.
#[derive(Debug, Default)]
pub struct LineBuffer {
    bytes: BytesMut,
    /// First bytes, which have no line feed.
    scanned: usize,
}

impl LineBuffer {
    /// Adds the next bytes of the stream.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Takes the next complete line, without its line feed.
    ///
    /// # Errors
    /// When the line is too long, complete or not.
    pub fn take_line(&mut self) -> Result<Option<Bytes>, LineTooLong> {
        let found = memchr::memchr(b'\n', &self.bytes[self.scanned..]);
        let line_bytes = found.map_or(self.bytes.len(), |at| self.scanned + at);
        if line_bytes > MAX_LINE_BYTES {
            return Err(LineTooLong);
        }
        if found.is_none() {
            // A slow line is then searched once, not again with each piece.
            self.scanned = line_bytes;
            return Ok(None);
        }
        self.scanned = 0;
        let mut line = self.bytes.split_to(line_bytes + 1).freeze();
        line.truncate(line_bytes);
        Ok(Some(line))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lines_of(pieces: &[&[u8]]) -> Vec<Bytes> {
        let (mut buffer, mut lines) = (LineBuffer::default(), Vec::new());
        for piece in pieces {
            buffer.push(piece);
            while let Some(line) = buffer.take_line().unwrap() {
                lines.push(line);
            }
        }
        lines
    }

    proptest! {
        #[test]
        fn lines_are_the_same_however_the_stream_is_split(
            text in "[ab\n]{0,60}",
            piece in 1usize..10,
        ) {
            let pieces: Vec<&[u8]> = text.as_bytes().chunks(piece).collect();
            let mut expected: Vec<&str> = text.split('\n').collect();
            expected.pop(); // what follows the last line feed is no line yet
            prop_assert_eq!(lines_of(&pieces), expected);
        }
    }

    #[test]
    fn a_line_is_refused_as_soon_as_it_is_too_long() {
        let mut buffer = LineBuffer::default();
        buffer.push(&vec![b'x'; MAX_LINE_BYTES]);
        assert_eq!(buffer.take_line(), Ok(None));
        buffer.push(b"x");
        assert_eq!(buffer.take_line(), Err(LineTooLong));
    }

    #[test]
    fn a_line_of_maximum_length_is_read() {
        let mut buffer = LineBuffer::default();
        buffer.push(&vec![b'x'; MAX_LINE_BYTES]);
        buffer.push(b"\n");
        assert_eq!(buffer.take_line().unwrap().unwrap().len(), MAX_LINE_BYTES);
    }
}
