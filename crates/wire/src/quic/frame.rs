//! How a call lies on a stream: `contract/quic.md`. Pure: bytes in, pieces out.
//!
//! An opening of fixed size, a head, then frames until the stream's end: a length of four bytes and so many bytes of the body;
//! with the top bit set, the trailers, which are the last. A body whose length is announced has none. What ends anywhere else was broken off.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use nearpath_types::Reason;
use nearpath_types::head::{BadHead, Fields, MAX_HEAD};

/// The version of this contract.
pub const VERSION: u8 = 1;
/// Bytes of a request's opening, without its head.
pub const ASKED: usize = 48;
/// Bytes of an answer's opening, without its head.
pub const ANSWERED: usize = 24;
/// The body's length is not known before its end.
pub const UNKNOWN: u64 = u64::MAX;
/// The frame holds the trailers.
const TRAILERS: u32 = 1 << 31;
/// Longest frame of a body that is written, in bytes.
pub const LONGEST: usize = TRAILERS as usize - 1;

/// What a caller says first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// Nobody waits for an answer.
    pub event: bool,
    /// Bytes of the body, or [`UNKNOWN`].
    pub total: u64,
    /// Nanoseconds that the caller will wait; 0: it did not say.
    pub patience: u64,
    /// Trace id and parent's span id (W3C Trace Context); zeros: none.
    pub trace: [u8; 16],
    /// See there.
    pub span: [u8; 8],
}

/// What is answered first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answered {
    /// The platform says so, not the function.
    pub platform: bool,
    /// HTTP status.
    pub status: u16,
    /// A number of `contract/reasons.toml`, or 0.
    pub reason: u16,
    /// Bytes of the body, or [`UNKNOWN`].
    pub total: u64,
}

impl Answered {
    /// Why the platform refuses or has no answer; `None`: it is the function's own.
    pub fn refusal(&self) -> Option<Reason> {
        Reason::ALL.iter().copied().find(|reason| self.platform && *reason as u16 == self.reason)
    }
}

/// One of the two.
pub trait Opening: Sized {
    /// Bytes, without the head.
    const SIZE: usize;
    /// Writes it; `head` bytes of head follow.
    fn write(&self, head: u32, out: &mut BytesMut);
    /// Reads it, and the length of the head.
    ///
    /// # Errors
    /// See [`Fault`].
    fn read(bytes: &mut &[u8]) -> Result<(Self, u32), Fault>;
    /// Bytes of the body, or [`UNKNOWN`].
    fn total(&self) -> u64;
}

/// Why this is no call, or no whole one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Another version of the contract.
    #[error("the peer speaks version {0} of the call protocol; this is version 1")]
    Version(u8),
    /// A bit is set that has no meaning.
    #[error("the opening has a flag that this version does not know")]
    Flag,
    /// See [`BadHead`].
    #[error("{0}")]
    Head(#[from] BadHead),
    /// The status is none of HTTP's.
    #[error("the answer's status is {0}")]
    Status(u16),
    /// More or fewer bytes than were announced.
    #[error("the body has another length than was announced")]
    Length,
    /// Something follows the trailers.
    #[error("something follows the trailers")]
    AfterTrailers,
    /// The stream ended within a frame, or before the opening was complete.
    #[error("the stream ended too early")]
    Cut,
}

impl Opening for Asked {
    const SIZE: usize = ASKED;

    fn write(&self, head: u32, out: &mut BytesMut) {
        out.put_u8(VERSION);
        out.put_u8(u8::from(self.event));
        out.put_u16_le(0);
        out.put_u32_le(head);
        out.put_u64_le(self.total);
        out.put_u64_le(self.patience);
        out.put_slice(&self.trace);
        out.put_slice(&self.span);
    }

    fn read(bytes: &mut &[u8]) -> Result<(Self, u32), Fault> {
        let event = version_and_flag(bytes)?;
        let zero = bytes.get_u16_le();
        let head = bytes.get_u32_le();
        let (total, patience) = (bytes.get_u64_le(), bytes.get_u64_le());
        let (mut trace, mut span) = ([0; 16], [0; 8]);
        bytes.copy_to_slice(&mut trace);
        bytes.copy_to_slice(&mut span);
        if zero != 0 {
            return Err(Fault::Flag);
        }
        Ok((Self { event, total, patience, trace, span }, head))
    }

    fn total(&self) -> u64 {
        self.total
    }
}

impl Opening for Answered {
    const SIZE: usize = ANSWERED;

    fn write(&self, head: u32, out: &mut BytesMut) {
        out.put_u8(VERSION);
        out.put_u8(u8::from(self.platform));
        out.put_u16_le(self.status);
        out.put_u32_le(head);
        out.put_u64_le(self.total);
        out.put_u16_le(self.reason);
        out.put_bytes(0, 6);
    }

    fn read(bytes: &mut &[u8]) -> Result<(Self, u32), Fault> {
        let platform = version_and_flag(bytes)?;
        let status = bytes.get_u16_le();
        let head = bytes.get_u32_le();
        let total = bytes.get_u64_le();
        let reason = bytes.get_u16_le();
        let zero = bytes.get_uint_le(6);
        if zero != 0 {
            return Err(Fault::Flag);
        }
        if !(100..1000).contains(&status) {
            return Err(Fault::Status(status));
        }
        Ok((Self { platform, status, reason, total }, head))
    }

    fn total(&self) -> u64 {
        self.total
    }
}

fn version_and_flag(bytes: &mut &[u8]) -> Result<bool, Fault> {
    match (bytes.get_u8(), bytes.get_u8()) {
        (VERSION, flag @ (0 | 1)) => Ok(flag == 1),
        (VERSION, _) => Err(Fault::Flag),
        (other, _) => Err(Fault::Version(other)),
    }
}

/// The four bytes before so many of a body.
pub fn data(length: usize) -> [u8; 4] {
    let length = u32::try_from(length.min(LONGEST)).expect("it was made small enough");
    length.to_le_bytes()
}

/// The four bytes before trailers.
pub fn trailers(length: usize) -> [u8; 4] {
    let length = u32::try_from(length.min(MAX_HEAD as usize)).expect("a head is small");
    (length | TRAILERS).to_le_bytes()
}

/// What a stream holds, in order: one opening, pieces of the body, perhaps trailers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece<O> {
    /// The opening and the head's bytes, which were checked.
    Opening(O, Bytes),
    /// Of the body.
    Data(Bytes),
    /// The trailers' bytes, checked like a head.
    Trailers(Bytes),
}

/// Takes a stream apart, however it was cut in pieces. It holds back at most an opening and a head.
#[derive(Debug)]
pub struct Decoder<O> {
    held: BytesMut,
    stage: Stage<O>,
    left: Option<u64>,
}

#[derive(Debug)]
enum Stage<O> {
    Opening,
    Head(O, usize),
    Between,
    Data(usize),
    Trailers(usize),
    Over,
}

impl<O: Opening> Decoder<O> {
    /// At the beginning of a stream.
    pub fn new() -> Self {
        Self { held: BytesMut::new(), stage: Stage::Opening, left: None }
    }

    /// Where to read into: what lies in it is looked at by [`piece`](Self::piece).
    pub fn held(&mut self) -> &mut BytesMut {
        &mut self.held
    }

    /// The next piece of what is held; nothing when more is needed.
    ///
    /// # Errors
    /// See [`Fault`].
    pub fn piece(&mut self) -> Result<Option<Piece<O>>, Fault> {
        loop {
            match std::mem::replace(&mut self.stage, Stage::Over) {
                Stage::Opening if self.held.len() >= O::SIZE => self.opening()?,
                Stage::Head(opening, length) if self.held.len() >= length => {
                    return self.head(opening, length).map(Some);
                }
                Stage::Between if self.held.len() >= 4 => self.between()?,
                Stage::Data(length) if !self.held.is_empty() => return self.data(length).map(Some),
                Stage::Trailers(length) if self.held.len() >= length => return self.trailers(length).map(Some),
                Stage::Over if !self.held.is_empty() => return Err(Fault::AfterTrailers),
                waiting => {
                    self.stage = waiting;
                    return Ok(None);
                }
            }
        }
    }

    /// The stream has ended.
    ///
    /// # Errors
    /// When it ended too early.
    pub fn end(&self) -> Result<(), Fault> {
        match self.stage {
            Stage::Between | Stage::Over if !self.held.is_empty() => Err(Fault::Cut),
            Stage::Between | Stage::Over => match self.left {
                None | Some(0) => Ok(()),
                Some(_) => Err(Fault::Length),
            },
            _ => Err(Fault::Cut),
        }
    }

    /// Bytes of the body that are still to come, if that is known.
    pub fn left(&self) -> Option<u64> {
        self.left
    }

    fn opening(&mut self) -> Result<(), Fault> {
        let bytes = self.held.split_to(O::SIZE);
        let (opening, head) = O::read(&mut &bytes[..])?;
        if head > MAX_HEAD {
            return Err(Fault::Head(BadHead::TooMany));
        }
        self.left = (opening.total() != UNKNOWN).then(|| opening.total());
        self.stage = Stage::Head(opening, head as usize);
        Ok(())
    }

    fn head(&mut self, opening: O, length: usize) -> Result<Piece<O>, Fault> {
        let head = self.held.split_to(length).freeze();
        Fields::new(&head).check()?;
        self.stage = Stage::Between;
        Ok(Piece::Opening(opening, head))
    }

    fn between(&mut self) -> Result<(), Fault> {
        let length = self.held.get_u32_le();
        let bytes = (length & !TRAILERS) as usize;
        self.stage = match length & TRAILERS != 0 {
            true if bytes > MAX_HEAD as usize => return Err(Fault::Head(BadHead::TooMany)),
            true => Stage::Trailers(bytes),
            false if bytes == 0 => Stage::Between,
            false => Stage::Data(bytes),
        };
        match (&self.stage, self.left) {
            (Stage::Data(bytes), Some(left)) if *bytes as u64 > left => Err(Fault::Length),
            _ => Ok(()),
        }
    }

    fn data(&mut self, length: usize) -> Result<Piece<O>, Fault> {
        let piece = self.held.split_to(length.min(self.held.len())).freeze();
        self.left = self.left.map(|left| left.saturating_sub(piece.len() as u64)); // a frame is never longer
        self.stage = match length - piece.len() {
            0 => Stage::Between,
            more => Stage::Data(more),
        };
        Ok(Piece::Data(piece))
    }

    fn trailers(&mut self, length: usize) -> Result<Piece<O>, Fault> {
        let trailers = self.held.split_to(length).freeze();
        Fields::new(&trailers).check()?;
        Ok(Piece::Trailers(trailers)) // and nothing after them
    }
}

impl<O: Opening> Default for Decoder<O> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn asked() -> impl Strategy<Value = Asked> {
        (any::<bool>(), any::<u64>(), any::<[u8; 16]>(), any::<[u8; 8]>())
            .prop_map(|(event, patience, trace, span)| Asked { event, total: UNKNOWN, patience, trace, span })
    }

    fn head(name: &str) -> Vec<u8> {
        [&[name.len() as u8, 0, 1, 0], name.as_bytes(), b"v"].concat()
    }

    fn written(asked: &Asked, head: &[u8], body: &[Vec<u8>], trailers_too: bool) -> Vec<u8> {
        let mut out = BytesMut::new();
        asked.write(head.len() as u32, &mut out);
        out.put_slice(head);
        for piece in body {
            out.put_slice(&data(piece.len()));
            out.put_slice(piece);
        }
        if trailers_too {
            out.put_slice(&trailers(head.len()));
            out.put_slice(head);
        }
        out.to_vec()
    }

    /// Opening, head, body, trailers of a stream that comes in chunks.
    fn read(bytes: &[u8], chunk: usize) -> Result<(Asked, Bytes, Vec<u8>, Option<Bytes>), Fault> {
        let (mut decoder, mut opening, mut body, mut last) = (Decoder::new(), None, Vec::new(), None);
        for chunk in bytes.chunks(chunk) {
            decoder.held().put_slice(chunk);
            while let Some(piece) = decoder.piece()? {
                match piece {
                    Piece::Opening(asked, head) => opening = Some((asked, head)),
                    Piece::Data(data) => body.extend_from_slice(&data),
                    Piece::Trailers(trailers) => last = Some(trailers),
                }
            }
        }
        decoder.end()?;
        let (asked, head) = opening.expect("the end is good only after the opening");
        Ok((asked, head, body, last))
    }

    proptest! {
        #[test]
        fn written_and_read_in_any_pieces(
            mut asked in asked(), known: bool, body in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..50), 0..5),
            trailers: bool, chunk in 1usize..80,
        ) {
            let whole = body.concat();
            if known {
                asked.total = whole.len() as u64;
            }
            let bytes = written(&asked, &head("name"), &body, trailers);
            let wanted = (asked, Bytes::from(head("name")), whole, trailers.then(|| Bytes::from(head("name"))));
            prop_assert_eq!(read(&bytes, chunk), Ok(wanted));
        }

        #[test]
        fn a_beginning_is_never_taken_for_the_whole(asked in asked(), body in proptest::collection::vec(any::<u8>(), 1..50), cut: usize) {
            let asked = Asked { total: body.len() as u64, ..asked };
            let bytes = written(&asked, &head("name"), &[body], true);
            let cut = cut % (bytes.len() - head("name").len() - 4); // trailers may be missing, the body not
            prop_assert!(read(&bytes[..cut], 7).is_err());
        }

        #[test]
        fn any_bytes_are_read_without_harm(bytes: Vec<u8>, chunk in 1usize..20) {
            let _ = read(&bytes, chunk);
        }

        #[test]
        fn answers_too(platform: bool, status in 100u16..1000, reason: u16, total: u64) {
            let answered = Answered { platform, status, reason, total };
            let mut out = BytesMut::new();
            answered.write(7, &mut out);
            prop_assert_eq!(out.len(), ANSWERED);
            prop_assert_eq!(Answered::read(&mut &out[..]), Ok((answered, 7)));
        }
    }

    #[test]
    fn faults() {
        let good = Asked { event: false, total: 3, patience: 0, trace: [0; 16], span: [0; 8] };
        let bytes = |body: &[Vec<u8>]| written(&good, b"", body, false);
        let with = |at: usize, value: u8| {
            let mut bytes = bytes(&[b"abc".to_vec()]);
            bytes[at] = value;
            read(&bytes, 9).unwrap_err()
        };
        assert_eq!((with(0, 2), with(1, 2), with(2, 1)), (Fault::Version(2), Fault::Flag, Fault::Flag));
        assert_eq!(with(7, 1), Fault::Head(BadHead::TooMany));
        assert_eq!(read(&bytes(&[b"ab".to_vec()]), 9), Err(Fault::Length));
        assert_eq!(read(&bytes(&[b"abcd".to_vec()]), 9), Err(Fault::Length));
        assert_eq!(read(&[&bytes(&[b"abc".to_vec()])[..], &trailers(0), &[0]].concat(), 9), Err(Fault::AfterTrailers));
        assert_eq!(
            Answered::read(&mut &[VERSION, 0, 99, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0][..]),
            Err(Fault::Status(99))
        );
    }
}
