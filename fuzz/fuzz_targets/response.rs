//! Bytes of a function's own server: a response is the same in one piece and in single bytes, and
//! what follows it stays.
#![no_main]

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use nearpath_gateway::fuzz::{BodyDecoder, DecodedPart, HeadParser, ResponseHead};

/// Facts that a reader has seen of a connection.
#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    status: Option<u16>,
    fields: Vec<(String, Vec<u8>)>,
    body: Vec<u8>,
    has_ended: bool,
    is_invalid: bool,
}

/// Reads a response from pieces of these bytes. Returns the bytes that follow it, too.
fn read<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> (Seen, Vec<u8>) {
    let (mut seen, mut buffer, mut decoder) = (Seen::default(), BytesMut::new(), None);
    let mut parser = HeadParser::default();
    for piece in pieces {
        buffer.extend_from_slice(piece);
        if !seen.is_invalid && step(&mut seen, &mut buffer, &mut parser, &mut decoder).is_none() {
            seen.is_invalid = true;
        }
    }
    (seen, buffer.to_vec())
}

fn step(
    seen: &mut Seen,
    buffer: &mut BytesMut,
    parser: &mut HeadParser,
    decoder: &mut Option<BodyDecoder>,
) -> Option<()> {
    if decoder.is_none() {
        let Some(head) = parser.parse(buffer).ok()? else {
            return Some(());
        };
        note_head(seen, &head);
        *decoder = Some(BodyDecoder::new(head.framing));
    }
    let decoder = decoder.as_mut()?;
    while let DecodedPart::Data(data) = decoder.decode(buffer).ok()? {
        assert!(!data.is_empty());
        seen.body.extend_from_slice(&data);
    }
    seen.has_ended = decoder.has_ended();
    Some(())
}

fn note_head(seen: &mut Seen, head: &ResponseHead) {
    let status = head.status.as_u16();
    assert!((200..600).contains(&status));
    seen.status = Some(status);
    for (name, value) in head.fields() {
        assert!(
            !name
                .bytes()
                .any(|byte| byte.is_ascii_uppercase() || byte == b'\n')
        );
        assert!(!value.contains(&b'\n'));
        seen.fields.push((name.to_owned(), value.to_vec()));
    }
}

fuzz_target!(|bytes: &[u8]| {
    let (whole, rest) = read(std::iter::once(bytes));
    let (single, rest_of_single) = read(bytes.chunks(1));
    assert_eq!(whole.is_invalid, single.is_invalid);
    if !whole.is_invalid {
        assert_eq!(whole, single);
        assert_eq!(rest, rest_of_single);
    }
});
