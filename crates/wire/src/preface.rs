//! Detection of HTTP/2 by a connection's first bytes, which are returned for the actual reader.

use std::io;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};

/// Preface of an HTTP/2 client (RFC 9113 section 3.4).
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Size of the first read: a typical request, so that detection costs no extra system call.
const FIRST_READ_BYTES: usize = 4096;

/// Protocol of a peer without TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClearTextProtocol {
    /// Anything that is not the preface; hyper checks it.
    Http1,
    /// The whole preface was received.
    Http2,
}

/// Detects the protocol from the bytes so far. `None`: they are a prefix of the preface, and more
/// are needed.
pub fn detect_protocol(bytes: &[u8]) -> Option<ClearTextProtocol> {
    let seen = bytes.len().min(PREFACE.len());
    // The first differing byte decides, so no HTTP/1 request waits for 24 bytes.
    match bytes[..seen] == PREFACE[..seen] {
        false => Some(ClearTextProtocol::Http1),
        true if seen == PREFACE.len() => Some(ClearTextProtocol::Http2),
        true => None,
    }
}

/// Reads until the protocol is known, behind the bytes in `seen`. `None`: the peer closed without
/// sending. The returned bytes must be read again.
///
/// # Errors
/// When reading fails.
pub async fn read_protocol<T: AsyncRead + Unpin>(
    io: &mut T,
    mut seen: BytesMut,
) -> io::Result<Option<(ClearTextProtocol, Bytes)>> {
    loop {
        if let Some(protocol) = detect_protocol(&seen) {
            return Ok(Some((protocol, seen.freeze())));
        }
        seen.reserve(FIRST_READ_BYTES);
        if io.read_buf(&mut seen).await? == 0 {
            return Ok((!seen.is_empty()).then(|| (ClearTextProtocol::Http1, seen.freeze())));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_preface_is_detected_in_any_pieces() {
        for n in 0..PREFACE.len() {
            assert_eq!(detect_protocol(&PREFACE[..n]), None, "{n}");
        }
        assert_eq!(detect_protocol(PREFACE), Some(ClearTextProtocol::Http2));
        assert_eq!(
            detect_protocol(&[PREFACE, b"more"].concat()),
            Some(ClearTextProtocol::Http2)
        );
        for http1 in [
            &b"G"[..],
            b"GET / HTTP/1.1",
            b"PROPFIND /",
            b"PRI * HTTP/1.1\r\n",
        ] {
            assert_eq!(detect_protocol(http1), Some(ClearTextProtocol::Http1));
        }
    }

    #[tokio::test]
    async fn bytes_read_for_the_detection_are_returned() {
        let mut io = &b"GET / HTTP/1.1\r\n"[..];
        assert_eq!(
            read_protocol(&mut io, BytesMut::new()).await.unwrap(),
            Some((
                ClearTextProtocol::Http1,
                Bytes::from_static(b"GET / HTTP/1.1\r\n")
            ))
        );
        let mut rest = &PREFACE[3..];
        let begun = BytesMut::from(&PREFACE[..3]);
        assert_eq!(
            read_protocol(&mut rest, begun).await.unwrap(),
            Some((ClearTextProtocol::Http2, Bytes::from_static(PREFACE)))
        );
        let mut silent = &b""[..];
        assert_eq!(
            read_protocol(&mut silent, BytesMut::new()).await.unwrap(),
            None
        );
        let mut half = &b"PRI"[..];
        assert_eq!(
            read_protocol(&mut half, BytesMut::new()).await.unwrap(),
            Some((ClearTextProtocol::Http1, Bytes::from_static(b"PRI")))
        );
    }
}
