//! Decoder for the bodies of HTTP/1.1 responses (RFC 9112 sections 6 and 7), without a socket.

use bytes::{Buf, Bytes, BytesMut};

use super::response_head::{BodyFraming, InvalidResponse};

/// Maximum bytes of the line in front of a chunk.
const MAX_CHUNK_LINE_BYTES: usize = 4 * 1024;
/// Maximum bytes of all trailers.
const MAX_TRAILER_BYTES: usize = 16 * 1024;

/// Maximum parts that are joined. A task yields after some writes; this bounds the work between two
/// of them, whatever the size of the chunks.
const MAX_JOINED_PARTS: usize = 64;

/// Decoder of one body.
#[derive(Debug)]
pub struct BodyDecoder(DecoderState);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DecoderState {
    /// So many bytes are left.
    Length(u64),
    UntilClose,
    /// In front of a chunk.
    ChunkLine,
    /// So many bytes of the chunk are left.
    ChunkData(u64),
    /// After the data of a chunk.
    ChunkEnd,
    /// After the last chunk, with the bytes of trailers so far.
    Trailers(usize),
    Ended,
    /// After the data in front of an invalid part.
    Invalid(InvalidResponse),
}

/// Next part of a body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DecodedPart {
    /// Some bytes of the body, at least one.
    Data(Bytes),
    /// Nothing follows.
    End,
    /// More bytes have to arrive.
    Incomplete,
}

impl BodyDecoder {
    /// Creates the decoder of a body with this framing.
    pub fn new(framing: BodyFraming) -> Self {
        Self(match framing {
            BodyFraming::Length(0) => DecoderState::Ended,
            BodyFraming::Length(length) => DecoderState::Length(length),
            BodyFraming::Chunked => DecoderState::ChunkLine,
            BodyFraming::UntilClose => DecoderState::UntilClose,
        })
    }

    /// Returns whether the body has ended.
    pub fn has_ended(&self) -> bool {
        self.0 == DecoderState::Ended
    }

    /// Returns whether the end of the connection ends the body.
    pub fn ends_with_connection(&self) -> bool {
        self.0 == DecoderState::UntilClose
    }

    /// Returns the bytes that are left, if they are known.
    pub fn bytes_left(&self) -> Option<u64> {
        match self.0 {
            DecoderState::Length(left) => Some(left),
            DecoderState::Ended => Some(0),
            _ => None,
        }
    }

    /// Takes the next parts from the beginning of the buffer. Joins data until it has more than
    /// `max_bytes`, or the parts are 64. An invalid part is told after the data in front of it.
    ///
    /// # Errors
    /// If the first part is not framed as announced.
    pub(super) fn decode_joined(
        &mut self,
        buffer: &mut BytesMut,
        max_bytes: usize,
    ) -> Result<DecodedPart, InvalidResponse> {
        let first = match self.decode(buffer)? {
            DecodedPart::Data(first) if first.len() <= max_bytes => first,
            other => return Ok(other),
        };
        let mut joined = BytesMut::from(&first[..]);
        drop(first); // the buffer is this decoder's alone again
        for _ in 1..MAX_JOINED_PARTS {
            if joined.len() > max_bytes {
                break;
            }
            match self.decode(buffer) {
                Ok(DecodedPart::Data(data)) => joined.extend_from_slice(&data),
                Ok(DecodedPart::End | DecodedPart::Incomplete) => break,
                Err(error) => {
                    self.0 = DecoderState::Invalid(error);
                    break;
                }
            }
        }
        Ok(DecodedPart::Data(joined.freeze()))
    }

    /// Takes the next part from the beginning of the buffer. Trailers are dropped: a caller that
    /// wants them does not come this way.
    ///
    /// # Errors
    /// If a chunk is not framed as announced.
    pub fn decode(&mut self, buffer: &mut BytesMut) -> Result<DecodedPart, InvalidResponse> {
        loop {
            self.0 = match self.0 {
                DecoderState::Ended => return Ok(DecodedPart::End),
                DecoderState::Invalid(error) => return Err(error),
                _ if buffer.is_empty() => return Ok(DecodedPart::Incomplete),
                DecoderState::UntilClose => return Ok(DecodedPart::Data(buffer.split().freeze())),
                DecoderState::Length(left) => {
                    let data = take_up_to(buffer, left);
                    let left = left - data.len() as u64;
                    self.0 = match left {
                        0 => DecoderState::Ended,
                        left => DecoderState::Length(left),
                    };
                    return Ok(DecodedPart::Data(data));
                }
                DecoderState::ChunkData(left) => {
                    let data = take_up_to(buffer, left);
                    let left = left - data.len() as u64;
                    self.0 = match left {
                        0 => DecoderState::ChunkEnd,
                        left => DecoderState::ChunkData(left),
                    };
                    return Ok(DecodedPart::Data(data));
                }
                DecoderState::ChunkLine => match take_line(buffer, MAX_CHUNK_LINE_BYTES)? {
                    None => return Ok(DecodedPart::Incomplete),
                    Some(line) => match parse_chunk_size(&line)? {
                        0 => DecoderState::Trailers(0),
                        size => DecoderState::ChunkData(size),
                    },
                },
                DecoderState::ChunkEnd => match take_line(buffer, 0)? {
                    None => return Ok(DecodedPart::Incomplete),
                    Some(_) => DecoderState::ChunkLine,
                },
                DecoderState::Trailers(before) => {
                    match take_line(buffer, MAX_TRAILER_BYTES - before)? {
                        None => return Ok(DecodedPart::Incomplete),
                        Some(line) if line.is_empty() => DecoderState::Ended,
                        Some(line) => {
                            DecoderState::Trailers((before + line.len()).min(MAX_TRAILER_BYTES))
                        }
                    }
                }
            };
        }
    }
}

fn take_up_to(buffer: &mut BytesMut, max_bytes: u64) -> Bytes {
    let length = usize::try_from(max_bytes).map_or(buffer.len(), |max| max.min(buffer.len()));
    buffer.split_to(length).freeze()
}

/// Takes a line of at most `max_bytes`, without its end; `None`: incomplete. Only CR LF ends it:
/// readers that also take LF alone can be made to disagree.
fn take_line(buffer: &mut BytesMut, max_bytes: usize) -> Result<Option<Bytes>, InvalidResponse> {
    let seen = &buffer[..buffer.len().min(max_bytes + 2)];
    let Some(end) = seen.iter().position(|byte| *byte == b'\n') else {
        // The last byte may be the CR of an end whose LF is to come.
        let is_too_long =
            seen.len() > max_bytes + 1 || (seen.len() > max_bytes && !seen.ends_with(b"\r"));
        return match is_too_long {
            true => Err(InvalidResponse::Chunk),
            false => Ok(None),
        };
    };
    let length = end.checked_sub(1).filter(|at| buffer[*at] == b'\r');
    let length = length.ok_or(InvalidResponse::Chunk)?;
    let line = buffer.split_to(length).freeze();
    buffer.advance(2);
    Ok(Some(line))
}

/// Parses the size of a chunk; extensions are dropped (RFC 9112 section 7.1.1).
fn parse_chunk_size(line: &[u8]) -> Result<u64, InvalidResponse> {
    let end = line.iter().position(|byte| *byte == b';');
    let digits = line[..end.unwrap_or(line.len())].trim_ascii_end();
    let is_hexadecimal =
        (1..=16).contains(&digits.len()) && digits.iter().all(u8::is_ascii_hexdigit);
    let text = std::str::from_utf8(digits).ok().filter(|_| is_hexadecimal);
    let size = text.and_then(|text| u64::from_str_radix(text, 16).ok());
    size.ok_or(InvalidResponse::Chunk)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Decodes pieces as they arrive: the body, whether it ended, and what followed.
    fn decode(
        framing: BodyFraming,
        pieces: &[&[u8]],
    ) -> Result<(Vec<u8>, bool, Vec<u8>), InvalidResponse> {
        let (mut decoder, mut buffer) = (BodyDecoder::new(framing), BytesMut::new());
        let mut body = Vec::new();
        for piece in pieces {
            buffer.extend_from_slice(piece);
            while let DecodedPart::Data(data) = decoder.decode(&mut buffer)? {
                body.extend_from_slice(&data);
            }
        }
        Ok((body, decoder.has_ended(), buffer.to_vec()))
    }

    #[test]
    fn short_parts_are_joined_and_an_invalid_one_follows() {
        let mut decoder = BodyDecoder::new(BodyFraming::Chunked);
        let mut buffer = BytesMut::from("1\r\na\r\n2\r\nbc\r\n3\r\ndef\r\nzz\r\n0\r\n\r\n");
        let mut next = || decoder.decode_joined(&mut buffer, 2);
        assert_eq!(next(), Ok(DecodedPart::Data("abc".into())));
        assert_eq!(next(), Ok(DecodedPart::Data("def".into())));
        assert_eq!(next(), Err(InvalidResponse::Chunk));
        let mut decoder = BodyDecoder::new(BodyFraming::Chunked);
        let mut buffer = BytesMut::from("1\r\na\r\nzz\r\n0\r\n\r\n");
        let mut next = || decoder.decode_joined(&mut buffer, 9);
        assert_eq!(next(), Ok(DecodedPart::Data("a".into())));
        assert_eq!(next(), Err(InvalidResponse::Chunk));
        assert_eq!(next(), Err(InvalidResponse::Chunk));
    }

    #[test]
    fn the_joined_parts_have_a_limit() {
        let mut buffer = BytesMut::from("1\r\nx\r\n".repeat(100).as_str());
        let mut decoder = BodyDecoder::new(BodyFraming::Chunked);
        for length in [64, 36] {
            let joined = decoder.decode_joined(&mut buffer, 8192).unwrap();
            assert_eq!(joined, DecodedPart::Data("x".repeat(length).into()));
        }
    }

    proptest! {
        #[test]
        fn joined_parts_are_the_parts(
            chunks in proptest::collection::vec(1usize..9, 0..9), cuts in proptest::collection::vec(1usize..7, 1..40), max in 0usize..12
        ) {
            let mut wire = Vec::new();
            for length in &chunks {
                wire.extend_from_slice(format!("{length:x}\r\n{}\r\n", "x".repeat(*length)).as_bytes());
            }
            wire.extend_from_slice(b"0\r\n\r\nrest");
            let (mut decoder, mut buffer) = (BodyDecoder::new(BodyFraming::Chunked), BytesMut::new());
            let (mut rest, mut body, mut cuts) = (&wire[..], 0, cuts.into_iter().cycle());
            while !rest.is_empty() {
                let (piece, after) = rest.split_at(cuts.next().unwrap().min(rest.len()));
                buffer.extend_from_slice(piece);
                rest = after;
                while let DecodedPart::Data(data) = decoder.decode_joined(&mut buffer, max).unwrap() {
                    body += data.len();
                }
            }
            prop_assert!(decoder.has_ended());
            prop_assert_eq!(body, chunks.iter().sum::<usize>());
            prop_assert_eq!(&buffer[..], b"rest");
        }
    }

    #[test]
    fn bodies_end_where_their_framing_says() {
        let text = |(body, ended, rest): (Vec<u8>, bool, Vec<u8>)| {
            (String::from_utf8(body).unwrap(), ended, rest)
        };
        let whole = decode(BodyFraming::Length(4), &[b"bo", b"dyHTTP"]).map(text);
        assert_eq!(whole, Ok(("body".into(), true, b"HTTP".to_vec())));
        let open = decode(BodyFraming::UntilClose, &[b"bo", b"dy"]).map(text);
        assert_eq!(open, Ok(("body".into(), false, vec![])));
        let chunks = b"2;a=b\r\nbo\r\n02 \r\ndy\r\n0\r\nx: 1\r\n\r\nHTTP";
        let chunked = decode(BodyFraming::Chunked, &[chunks]).map(text);
        assert_eq!(chunked, Ok(("body".into(), true, b"HTTP".to_vec())));
    }

    #[test]
    fn chunks_with_two_meanings_are_refused() {
        for chunks in [
            &b"2\nbo\n0\n\n"[..],
            b"+2\r\nbo\r\n",
            b"0x2\r\nbo\r\n",
            b"\r\nbo\r\n",
            b"2\r\nbody\r\n",
            b"2\r\nbo\n",
            b"11111111111111111\r\n",
            b"-1\r\n",
        ] {
            let decoded = decode(BodyFraming::Chunked, &[chunks]);
            assert_eq!(decoded, Err(InvalidResponse::Chunk), "{chunks:?}");
        }
        let endless = [b"1;".to_vec(), vec![b'a'; MAX_CHUNK_LINE_BYTES]].concat();
        assert!(decode(BodyFraming::Chunked, &[&endless]).is_err());
        let trailers = [b"0\r\n".to_vec(), b"x: y\r\n".repeat(MAX_TRAILER_BYTES)].concat();
        assert!(decode(BodyFraming::Chunked, &[&trailers]).is_err());
    }

    proptest! {
        #[test]
        fn pieces_do_not_matter(
            chunks in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..40), 0..6),
            cuts in proptest::collection::vec(1usize..20, 0..40),
        ) {
            let mut encoded = Vec::new();
            for chunk in &chunks {
                encoded.extend(format!("{:X}\r\n", chunk.len()).bytes());
                encoded.extend(chunk);
                encoded.extend(b"\r\n");
            }
            encoded.extend(b"0\r\n\r\nrest");
            let (mut pieces, mut left) = (Vec::new(), &encoded[..]);
            for cut in cuts {
                let (piece, rest) = left.split_at(cut.min(left.len()));
                pieces.push(piece);
                left = rest;
            }
            pieces.push(left);
            let (body, ended, rest) = decode(BodyFraming::Chunked, &pieces).unwrap();
            prop_assert_eq!(body, chunks.concat());
            prop_assert!(ended);
            prop_assert_eq!(rest, b"rest");
        }

        #[test]
        fn any_bytes_are_decoded_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = decode(BodyFraming::Chunked, &[&bytes]);
        }
    }
}
