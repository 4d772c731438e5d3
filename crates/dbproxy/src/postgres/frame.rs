//! Framing of messages: a tag of one byte, a length of four bytes that includes itself, and a body.

use bytes::{Buf, BytesMut};

/// Bytes of a message's header: tag and length.
pub(super) const HEADER_BYTES: usize = 5;
/// The longest statement that is read as a whole, in bytes. Longer ones pass in pieces, unread.
pub(super) const MAX_WHOLE_BYTES: usize = 1 << 20;
/// Bytes read of other messages: the beginning holds all names, which are much shorter
/// (`NAMEDATALEN` is 64).
const MAX_START_BYTES: usize = 16 << 10;
/// The longest message that PostgreSQL accepts (`MaxAllocSize` in its `memutils.h`).
const MAX_MESSAGE_BYTES: usize = 0x3fff_ffff;

/// A length that no message can have.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message of {0} bytes")]
pub(super) struct MalformedMessage(usize);

/// The next part of the input.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum MessagePiece {
    /// A whole message.
    Whole(BytesMut),
    /// The beginning of a long message.
    Start(BytesMut),
    /// More of a long message.
    More(BytesMut),
}

/// Unprocessed input of one side.
#[derive(Debug, Default)]
pub(super) struct PostgresFramer {
    bytes: BytesMut,
    bytes_left: usize,
}

impl PostgresFramer {
    /// Returns the buffer to read into.
    pub(super) fn buffer(&mut self) -> &mut BytesMut {
        &mut self.bytes
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns whether no message has passed in part.
    pub(super) fn is_between_messages(&self) -> bool {
        self.bytes_left == 0
    }

    /// Takes all leading complete messages with `plain` tags, in one piece.
    ///
    /// # Errors
    /// Fails with [`MalformedMessage`].
    pub(super) fn take_run(
        &mut self,
        plain: impl Fn(u8) -> bool,
    ) -> Result<Option<BytesMut>, MalformedMessage> {
        // Rows make up most of a reply. One copy for a run of them spares a copy and a lookup per
        // row.
        let mut end = 0;
        while self.bytes_left == 0
            && self.bytes.len() >= end + HEADER_BYTES
            && plain(self.bytes[end])
        {
            let length = message_length(&self.bytes[end..])?;
            if self.bytes.len() < end + length {
                break;
            }
            end += length;
        }
        Ok((end > 0).then(|| self.bytes.split_to(end)))
    }

    /// Takes the next piece. `None`: more bytes are needed.
    ///
    /// # Errors
    /// Fails with [`MalformedMessage`].
    pub(super) fn next_piece(&mut self) -> Result<Option<MessagePiece>, MalformedMessage> {
        if self.bytes_left > 0 {
            let more = self.bytes.split_to(self.bytes_left.min(self.bytes.len()));
            self.bytes_left -= more.len();
            return Ok((!more.is_empty()).then_some(MessagePiece::More(more)));
        }
        if self.bytes.len() < HEADER_BYTES {
            return Ok(None);
        }
        // Statements are read as a whole, because their text decides about the session; of a Bind
        // only the names matter.
        let (length, max_bytes) = (message_length(&self.bytes)?, max_whole_bytes(self.bytes[0]));
        if self.bytes.len() >= length {
            return Ok(Some(MessagePiece::Whole(self.bytes.split_to(length))));
        }
        if length <= max_bytes || self.bytes.len() < max_bytes {
            return Ok(None);
        }
        let start = self.bytes.split_to(self.bytes.len());
        self.bytes_left = length - start.len();
        Ok(Some(MessagePiece::Start(start)))
    }
}

fn max_whole_bytes(tag: u8) -> usize {
    if matches!(tag, b'Q' | b'P') {
        MAX_WHOLE_BYTES
    } else {
        MAX_START_BYTES
    }
}

/// Returns the length of the message that `bytes` begin with, including its tag.
fn message_length(bytes: &[u8]) -> Result<usize, MalformedMessage> {
    // The length does not count the tag, hence the `+ 1` below.
    let length = (&bytes[1..HEADER_BYTES]).get_u32() as usize;
    if (4..=MAX_MESSAGE_BYTES).contains(&length) {
        Ok(length + 1)
    } else {
        Err(MalformedMessage(length))
    }
}

/// Splits a zero-terminated text from what follows it.
pub(super) fn split_text(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = bytes.iter().position(|&byte| byte == 0)?;
    Some((&bytes[..end], &bytes[end + 1..]))
}

#[cfg(test)]
mod tests {
    use bytes::BufMut;
    use proptest::prelude::*;

    use super::*;

    fn encode_message(tag: u8, body: &[u8]) -> Vec<u8> {
        let mut bytes = vec![tag];
        bytes.put_u32(4 + body.len() as u32);
        bytes.extend_from_slice(body);
        bytes
    }

    #[test]
    fn impossible_lengths_are_malformed() {
        for length in [0_u32, 3, 0x4000_0000, u32::MAX] {
            let mut inbox = PostgresFramer::default();
            inbox.buffer().put_u8(b'Q');
            inbox.buffer().put_u32(length);
            assert_eq!(inbox.next_piece(), Err(MalformedMessage(length as usize)));
            assert_eq!(
                inbox.take_run(|_| true),
                Err(MalformedMessage(length as usize))
            );
        }
    }

    proptest! {
        #[test]
        fn output_equals_input(
            bodies in prop::collection::vec((prop::sample::select(b"QDBC".to_vec()), 0_usize..40_000), 1..6),
            cut in 1_usize..30_000,
            runs: bool,
        ) {
            let sent: Vec<u8> = bodies.iter().flat_map(|&(tag, size)| encode_message(tag, &vec![tag; size])).collect();
            let (mut inbox, mut got) = (PostgresFramer::default(), Vec::new());
            for part in sent.chunks(cut) {
                inbox.buffer().extend_from_slice(part);
                loop {
                    if runs && let Some(run) = inbox.take_run(|tag| tag == b'D').unwrap() {
                        got.extend_from_slice(&run);
                        continue;
                    }
                    let Some(piece) = inbox.next_piece().unwrap() else { break };
                    let (MessagePiece::Whole(bytes) | MessagePiece::Start(bytes) | MessagePiece::More(bytes)) = piece;
                    got.extend_from_slice(&bytes);
                }
            }
            prop_assert!(inbox.is_empty() && inbox.is_between_messages());
            prop_assert_eq!(got, sent);
        }
    }
}
