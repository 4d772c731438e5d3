//! Messages as they lie in a stream: a tag, a length of four bytes that counts itself, a body.

use bytes::{Buf, BytesMut};

/// Bytes before a body.
pub(super) const HEAD: usize = 5;
/// The longest statement that is read as a whole. Longer ones pass in pieces, unread.
pub(super) const LONGEST_READ: usize = 1 << 20;
/// Of other messages only the beginning matters, and names there are much shorter than this.
const BEGINNING: usize = 16 << 10;
/// What PostgreSQL itself takes at most.
const LONGEST: usize = 0x3fff_ffff;

/// A length that no message has.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message of {0} bytes")]
pub(super) struct Malformed(usize);

/// What came next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// A message.
    Whole(BytesMut),
    /// The beginning of a long message.
    Start(BytesMut),
    /// More of it.
    More(BytesMut),
}

/// Bytes that came from one side and were not dealt with.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    bytes: BytesMut,
    rest: usize,
}

impl Inbox {
    /// Where to read to.
    pub(super) fn room(&mut self) -> &mut BytesMut {
        &mut self.bytes
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Whether nothing of a message has passed whose end has not.
    pub(super) fn is_between_messages(&self) -> bool {
        self.rest == 0
    }

    /// As many whole messages with `plain` tags as there are, in one piece.
    ///
    /// # Errors
    /// [`Malformed`].
    pub(super) fn run(&mut self, plain: impl Fn(u8) -> bool) -> Result<Option<BytesMut>, Malformed> {
        let mut end = 0;
        while self.rest == 0 && self.bytes.len() >= end + HEAD && plain(self.bytes[end]) {
            let length = length(&self.bytes[end..])?;
            if self.bytes.len() < end + length {
                break;
            }
            end += length;
        }
        Ok((end > 0).then(|| self.bytes.split_to(end)))
    }

    /// What comes next; `None`: more bytes are needed.
    ///
    /// # Errors
    /// [`Malformed`].
    pub(super) fn next(&mut self) -> Result<Option<Piece>, Malformed> {
        if self.rest > 0 {
            let more = self.bytes.split_to(self.rest.min(self.bytes.len()));
            self.rest -= more.len();
            return Ok((!more.is_empty()).then_some(Piece::More(more)));
        }
        if self.bytes.len() < HEAD {
            return Ok(None);
        }
        let (length, most) = (length(&self.bytes)?, longest_read(self.bytes[0]));
        if self.bytes.len() >= length {
            return Ok(Some(Piece::Whole(self.bytes.split_to(length))));
        }
        if length <= most || self.bytes.len() < most {
            return Ok(None);
        }
        let start = self.bytes.split_to(self.bytes.len());
        self.rest = length - start.len();
        Ok(Some(Piece::Start(start)))
    }
}

fn longest_read(tag: u8) -> usize {
    if matches!(tag, b'Q' | b'P') { LONGEST_READ } else { BEGINNING }
}

/// Of the message that `bytes` begin with, its tag included.
fn length(bytes: &[u8]) -> Result<usize, Malformed> {
    let length = (&bytes[1..HEAD]).get_u32() as usize;
    if (4..=LONGEST).contains(&length) { Ok(length + 1) } else { Err(Malformed(length)) }
}

/// A text that ends with 0, and what follows it.
pub(super) fn text(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = bytes.iter().position(|&byte| byte == 0)?;
    Some((&bytes[..end], &bytes[end + 1..]))
}

#[cfg(test)]
mod tests {
    use bytes::BufMut;
    use proptest::prelude::*;

    use super::*;

    fn message(tag: u8, body: &[u8]) -> Vec<u8> {
        let mut bytes = vec![tag];
        bytes.put_u32(4 + body.len() as u32);
        bytes.extend_from_slice(body);
        bytes
    }

    #[test]
    fn lengths_that_cannot_be_end_the_stream() {
        for length in [0_u32, 3, 0x4000_0000, u32::MAX] {
            let mut inbox = Inbox::default();
            inbox.room().put_u8(b'Q');
            inbox.room().put_u32(length);
            assert_eq!(inbox.next(), Err(Malformed(length as usize)));
            assert_eq!(inbox.run(|_| true), Err(Malformed(length as usize)));
        }
    }

    proptest! {
        #[test]
        fn what_comes_out_is_what_came_in(
            bodies in prop::collection::vec((prop::sample::select(b"QDBC".to_vec()), 0_usize..40_000), 1..6),
            cut in 1_usize..30_000,
            runs: bool,
        ) {
            let sent: Vec<u8> = bodies.iter().flat_map(|&(tag, size)| message(tag, &vec![tag; size])).collect();
            let (mut inbox, mut got) = (Inbox::default(), Vec::new());
            for part in sent.chunks(cut) {
                inbox.room().extend_from_slice(part);
                loop {
                    if runs && let Some(run) = inbox.run(|tag| tag == b'D').unwrap() {
                        got.extend_from_slice(&run);
                        continue;
                    }
                    let Some(piece) = inbox.next().unwrap() else { break };
                    let (Piece::Whole(bytes) | Piece::Start(bytes) | Piece::More(bytes)) = piece;
                    got.extend_from_slice(&bytes);
                }
            }
            prop_assert!(inbox.is_empty() && inbox.is_between_messages());
            prop_assert_eq!(got, sent);
        }
    }
}
