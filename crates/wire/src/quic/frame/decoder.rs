//! Takes a stream apart, however it was cut in pieces.

use bytes::{Buf, Bytes, BytesMut};
use nearpath_types::head::{BadHead, Fields, MAX_HEAD};

use super::{Fault, Opening, TRAILERS, UNKNOWN};

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
    use super::super::*;
    use super::*;
    use bytes::BufMut;
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
