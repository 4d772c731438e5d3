//! What comes on a QUIC stream: any bytes, cut anywhere, give the same pieces or the same fault.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use nearpath_wire::quic::frame::{Answered, Asked, Decoder, Fault, Opening, Piece};

/// The opening's head, the body and the trailers; or the fault.
fn read<O: Opening>(bytes: &[u8], chunk: usize) -> Result<(Option<Bytes>, Vec<u8>, Option<Bytes>), Fault> {
    let (mut decoder, mut head, mut body, mut trailers) = (Decoder::<O>::new(), None, Vec::new(), None);
    for chunk in bytes.chunks(chunk) {
        decoder.held().extend_from_slice(chunk);
        while let Some(piece) = decoder.piece()? {
            match piece {
                Piece::Opening(_, bytes) => assert!(head.replace(bytes).is_none()),
                Piece::Data(bytes) => {
                    assert!(head.is_some() && trailers.is_none() && !bytes.is_empty());
                    body.extend_from_slice(&bytes);
                }
                Piece::Trailers(bytes) => assert!(head.is_some() && trailers.replace(bytes).is_none()),
            }
        }
    }
    decoder.end().map(|()| (head, body, trailers))
}

fuzz_target!(|bytes: &[u8]| {
    let Some((first, bytes)) = bytes.split_first() else { return };
    let chunk = usize::from(*first).max(1);
    assert_eq!(read::<Asked>(bytes, chunk), read::<Asked>(bytes, bytes.len().max(1)));
    assert_eq!(read::<Answered>(bytes, chunk), read::<Answered>(bytes, bytes.len().max(1)));
});
