//! Bytes of a QUIC stream: however they are split, they give the same frames or the same error.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use nearpath_wire::quic::frame::{
    CallOpening, FrameDecoder, FrameError, RequestOpening, ResponseOpening, StreamPiece,
};

/// The opening's head, the body and the trailers; or the fault.
fn read<O: CallOpening>(
    bytes: &[u8],
    chunk: usize,
) -> Result<(Option<Bytes>, Vec<u8>, Option<Bytes>), FrameError> {
    let (mut decoder, mut head, mut body, mut trailers) =
        (FrameDecoder::<O>::new(), None, Vec::new(), None);
    for chunk in bytes.chunks(chunk) {
        decoder.buffer_mut().extend_from_slice(chunk);
        while let Some(piece) = decoder.next_piece()? {
            match piece {
                StreamPiece::Opening(_, bytes) => assert!(head.replace(bytes).is_none()),
                StreamPiece::Data(bytes) => {
                    assert!(head.is_some() && trailers.is_none() && !bytes.is_empty());
                    body.extend_from_slice(&bytes);
                }
                StreamPiece::Trailers(bytes) => {
                    assert!(head.is_some() && trailers.replace(bytes).is_none())
                }
            }
        }
    }
    decoder.check_end().map(|()| (head, body, trailers))
}

fuzz_target!(|bytes: &[u8]| {
    let Some((first, bytes)) = bytes.split_first() else {
        return;
    };
    let chunk = usize::from(*first).max(1);
    assert_eq!(
        read::<RequestOpening>(bytes, chunk),
        read::<RequestOpening>(bytes, bytes.len().max(1))
    );
    assert_eq!(
        read::<ResponseOpening>(bytes, chunk),
        read::<ResponseOpening>(bytes, bytes.len().max(1))
    );
});
