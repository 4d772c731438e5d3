//! Decodes a stream that arrives in pieces of any size.

use bytes::{Buf, Bytes, BytesMut};
use nearpath_types::head::{HeadError, HeadFields, MAX_HEAD_BYTES};

use super::{CallOpening, FrameError, TRAILERS_FLAG, UNKNOWN_LENGTH};

/// Parts of a stream, in order: an opening, data, optional trailers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamPiece<O> {
    /// The opening and the bytes of the head, which were checked.
    Opening(O, Bytes),
    /// A piece of the body.
    Data(Bytes),
    /// The bytes of the trailers, checked like a head.
    Trailers(Bytes),
}

/// Decodes a stream. It buffers at most an opening and a head.
#[derive(Debug)]
pub struct FrameDecoder<O> {
    buffer: BytesMut,
    stage: DecoderStage<O>,
    remaining: Option<u64>,
}

#[derive(Debug)]
enum DecoderStage<O> {
    Opening,
    Head(O, usize),
    BetweenFrames,
    Data(usize),
    Trailers(usize),
    Ended,
}

impl<O: CallOpening> FrameDecoder<O> {
    /// Creates a decoder at the start of a stream.
    pub fn new() -> Self {
        Self {
            buffer: BytesMut::new(),
            stage: DecoderStage::Opening,
            remaining: None,
        }
    }

    /// Buffer to read into. [`next_piece`](Self::next_piece) decodes it.
    pub fn buffer_mut(&mut self) -> &mut BytesMut {
        &mut self.buffer
    }

    /// Returns the next piece of the buffer; `None` if more data is needed.
    ///
    /// # Errors
    /// See [`FrameError`].
    pub fn next_piece(&mut self) -> Result<Option<StreamPiece<O>>, FrameError> {
        loop {
            // Taken out to own the opening; every branch that continues sets the next stage.
            match std::mem::replace(&mut self.stage, DecoderStage::Ended) {
                DecoderStage::Opening if self.buffer.len() >= O::SIZE_BYTES => {
                    self.decode_opening()?
                }
                DecoderStage::Head(opening, length) if self.buffer.len() >= length => {
                    return self.decode_head(opening, length).map(Some);
                }
                DecoderStage::BetweenFrames if self.buffer.len() >= 4 => {
                    self.decode_frame_header()?
                }
                DecoderStage::Data(length) if !self.buffer.is_empty() => {
                    return self.decode_data(length).map(Some);
                }
                DecoderStage::Trailers(length) if self.buffer.len() >= length => {
                    return self.decode_trailers(length).map(Some);
                }
                DecoderStage::Ended if !self.buffer.is_empty() => {
                    return Err(FrameError::DataAfterTrailers);
                }
                waiting => {
                    self.stage = waiting;
                    return Ok(None);
                }
            }
        }
    }

    /// Checks that the stream may end here.
    ///
    /// # Errors
    /// When the stream ended too early.
    pub fn check_end(&self) -> Result<(), FrameError> {
        match self.stage {
            DecoderStage::BetweenFrames | DecoderStage::Ended if !self.buffer.is_empty() => {
                Err(FrameError::Truncated)
            }
            DecoderStage::BetweenFrames | DecoderStage::Ended => match self.remaining {
                None | Some(0) => Ok(()),
                Some(_) => Err(FrameError::WrongLength),
            },
            _ => Err(FrameError::Truncated),
        }
    }

    /// Bytes of the body still to come, if known.
    pub fn remaining(&self) -> Option<u64> {
        self.remaining
    }

    fn decode_opening(&mut self) -> Result<(), FrameError> {
        let bytes = self.buffer.split_to(O::SIZE_BYTES);
        let (opening, head) = O::read_from(&mut &bytes[..])?;
        if head > MAX_HEAD_BYTES {
            return Err(FrameError::Head(HeadError::TooMany));
        }
        self.remaining = (opening.body_length() != UNKNOWN_LENGTH).then(|| opening.body_length());
        self.stage = DecoderStage::Head(opening, head as usize);
        Ok(())
    }

    fn decode_head(&mut self, opening: O, length: usize) -> Result<StreamPiece<O>, FrameError> {
        let head = self.buffer.split_to(length).freeze();
        HeadFields::new(&head).check_all()?;
        self.stage = DecoderStage::BetweenFrames;
        Ok(StreamPiece::Opening(opening, head))
    }

    fn decode_frame_header(&mut self) -> Result<(), FrameError> {
        let length = self.buffer.get_u32_le();
        let bytes = (length & !TRAILERS_FLAG) as usize;
        self.stage = match length & TRAILERS_FLAG != 0 {
            true if bytes > MAX_HEAD_BYTES as usize => {
                return Err(FrameError::Head(HeadError::TooMany));
            }
            true => DecoderStage::Trailers(bytes),
            // An empty frame carries nothing and is skipped.
            false if bytes == 0 => DecoderStage::BetweenFrames,
            false => DecoderStage::Data(bytes),
        };
        match (&self.stage, self.remaining) {
            (DecoderStage::Data(bytes), Some(left)) if *bytes as u64 > left => {
                Err(FrameError::WrongLength)
            }
            _ => Ok(()),
        }
    }

    fn decode_data(&mut self, length: usize) -> Result<StreamPiece<O>, FrameError> {
        let piece = self.buffer.split_to(length.min(self.buffer.len())).freeze();
        self.remaining = self
            .remaining
            // the frame header was checked against it
            .map(|left| left.saturating_sub(piece.len() as u64));
        self.stage = match length - piece.len() {
            0 => DecoderStage::BetweenFrames,
            more => DecoderStage::Data(more),
        };
        Ok(StreamPiece::Data(piece))
    }

    fn decode_trailers(&mut self, length: usize) -> Result<StreamPiece<O>, FrameError> {
        let trailers = self.buffer.split_to(length).freeze();
        HeadFields::new(&trailers).check_all()?;
        Ok(StreamPiece::Trailers(trailers)) // the state stays `Ended`: nothing may follow
    }
}

impl<O: CallOpening> Default for FrameDecoder<O> {
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

    fn any_request_opening() -> impl Strategy<Value = RequestOpening> {
        (
            any::<bool>(),
            any::<u64>(),
            any::<[u8; 16]>(),
            any::<[u8; 8]>(),
        )
            .prop_map(|(event, timeout_nanos, trace, span)| RequestOpening {
                is_event: event,
                body_length: UNKNOWN_LENGTH,
                timeout_nanos,
                trace_id: trace,
                span_id: span,
            })
    }

    fn header_field(name: &str) -> Vec<u8> {
        [&[name.len() as u8, 0, 1, 0], name.as_bytes(), b"v"].concat()
    }

    fn encode_call(
        opening: &RequestOpening,
        head: &[u8],
        body: &[Vec<u8>],
        trailers_too: bool,
    ) -> Vec<u8> {
        let mut out = BytesMut::new();
        opening.write_to(head.len() as u32, &mut out);
        out.put_slice(head);
        for piece in body {
            out.put_slice(&data_frame_header(piece.len()));
            out.put_slice(piece);
        }
        if trailers_too {
            out.put_slice(&trailers_frame_header(head.len()));
            out.put_slice(head);
        }
        out.to_vec()
    }

    /// Opening, head, body and trailers of a stream that arrives in chunks.
    fn decode_call(
        bytes: &[u8],
        chunk: usize,
    ) -> Result<(RequestOpening, Bytes, Vec<u8>, Option<Bytes>), FrameError> {
        let (mut decoder, mut opening, mut body, mut last) =
            (FrameDecoder::new(), None, Vec::new(), None);
        for chunk in bytes.chunks(chunk) {
            decoder.buffer_mut().put_slice(chunk);
            while let Some(piece) = decoder.next_piece()? {
                match piece {
                    StreamPiece::Opening(asked, head) => opening = Some((asked, head)),
                    StreamPiece::Data(data) => body.extend_from_slice(&data),
                    StreamPiece::Trailers(trailers) => last = Some(trailers),
                }
            }
        }
        decoder.check_end()?;
        let (asked, head) = opening.expect("the end is good only after the opening");
        Ok((asked, head, body, last))
    }

    proptest! {
        #[test]
        fn written_and_read_in_any_pieces(
            mut asked in any_request_opening(), known: bool, body in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..50), 0..5),
            trailers: bool, chunk in 1usize..80,
        ) {
            let whole = body.concat();
            if known {
                asked.body_length = whole.len() as u64;
            }
            let bytes = encode_call(&asked, &header_field("name"), &body, trailers);
            let wanted = (asked, Bytes::from(header_field("name")), whole, trailers.then(|| Bytes::from(header_field("name"))));
            prop_assert_eq!(decode_call(&bytes, chunk), Ok(wanted));
        }

        #[test]
        fn a_beginning_is_never_taken_for_the_whole(asked in any_request_opening(), body in proptest::collection::vec(any::<u8>(), 1..50), cut: usize) {
            let asked = RequestOpening { body_length: body.len() as u64, ..asked };
            let bytes = encode_call(&asked, &header_field("name"), &[body], true);
            // trailers may be missing, the body not
            let cut = cut % (bytes.len() - header_field("name").len() - 4);
            prop_assert!(decode_call(&bytes[..cut], 7).is_err());
        }

        #[test]
        fn any_bytes_are_read_without_harm(bytes: Vec<u8>, chunk in 1usize..20) {
            let _ = decode_call(&bytes, chunk);
        }

        #[test]
        fn answers_too(is_platform: bool, status in 100u16..1000, reason_number: u16, body_length: u64) {
            let answered = ResponseOpening { is_platform, status, reason_number, body_length };
            let mut out = BytesMut::new();
            answered.write_to(7, &mut out);
            prop_assert_eq!(out.len(), RESPONSE_OPENING_BYTES);
            prop_assert_eq!(ResponseOpening::read_from(&mut &out[..]), Ok((answered, 7)));
        }
    }

    #[test]
    fn malformed_streams_are_errors() {
        let good = RequestOpening {
            is_event: false,
            body_length: 3,
            timeout_nanos: 0,
            trace_id: [0; 16],
            span_id: [0; 8],
        };
        let bytes = |body: &[Vec<u8>]| encode_call(&good, b"", body, false);
        let with = |at: usize, value: u8| {
            let mut bytes = bytes(&[b"abc".to_vec()]);
            bytes[at] = value;
            decode_call(&bytes, 9).unwrap_err()
        };
        assert_eq!(
            (with(0, 2), with(1, 2), with(2, 1)),
            (
                FrameError::Version(2),
                FrameError::UnknownFlag,
                FrameError::UnknownFlag
            )
        );
        assert_eq!(with(7, 1), FrameError::Head(HeadError::TooMany));
        assert_eq!(
            decode_call(&bytes(&[b"ab".to_vec()]), 9),
            Err(FrameError::WrongLength)
        );
        assert_eq!(
            decode_call(&bytes(&[b"abcd".to_vec()]), 9),
            Err(FrameError::WrongLength)
        );
        assert_eq!(
            decode_call(
                &[
                    &bytes(&[b"abc".to_vec()])[..],
                    &trailers_frame_header(0),
                    &[0]
                ]
                .concat(),
                9
            ),
            Err(FrameError::DataAfterTrailers)
        );
        let mut opening = [0; RESPONSE_OPENING_BYTES];
        (opening[0], opening[2]) = (CALL_PROTOCOL_VERSION, 99);
        assert_eq!(
            ResponseOpening::read_from(&mut &opening[..]),
            Err(FrameError::Status(99))
        );
    }
}
