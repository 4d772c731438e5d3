//! Tells HTTP/2 from HTTP/1 by a connection's first bytes, and gives those bytes back to whoever reads next.

use std::io;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};

/// What an HTTP/2 client sends first (RFC 9113 section 3.4).
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Room for one usual request, so that telling the protocol costs no system call of its own.
const FIRST_READ: usize = 4096;

/// Which protocol a cleartext peer speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spoken {
    /// Anything that is not the preface; hyper judges it.
    Http1,
    /// The whole preface was seen.
    Http2,
}

/// Judges the bytes so far; `None`: they are a beginning of the preface, more are needed.
pub fn judge(bytes: &[u8]) -> Option<Spoken> {
    let seen = bytes.len().min(PREFACE.len());
    match bytes[..seen] == PREFACE[..seen] {
        false => Some(Spoken::Http1),
        true if seen == PREFACE.len() => Some(Spoken::Http2),
        true => None,
    }
}

/// Reads until the protocol is known. `None`: the peer closed without a word. The bytes are to be replayed.
///
/// # Errors
/// When reading fails.
pub async fn tell<T: AsyncRead + Unpin>(io: &mut T) -> io::Result<Option<(Spoken, Bytes)>> {
    let mut seen = BytesMut::with_capacity(FIRST_READ);
    loop {
        if io.read_buf(&mut seen).await? == 0 {
            return Ok((!seen.is_empty()).then(|| (Spoken::Http1, seen.freeze())));
        }
        if let Some(spoken) = judge(&seen) {
            return Ok(Some((spoken, seen.freeze())));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_preface_in_any_pieces() {
        for n in 0..PREFACE.len() {
            assert_eq!(judge(&PREFACE[..n]), None, "{n}");
        }
        assert_eq!(judge(PREFACE), Some(Spoken::Http2));
        assert_eq!(judge(&[PREFACE, b"more"].concat()), Some(Spoken::Http2));
        for http1 in [&b"G"[..], b"GET / HTTP/1.1", b"PROPFIND /", b"PRI * HTTP/1.1\r\n"] {
            assert_eq!(judge(http1), Some(Spoken::Http1));
        }
    }

    #[tokio::test]
    async fn what_was_read_is_kept() {
        let mut io = &b"GET / HTTP/1.1\r\n"[..];
        assert_eq!(tell(&mut io).await.unwrap(), Some((Spoken::Http1, Bytes::from_static(b"GET / HTTP/1.1\r\n"))));
        let mut silent = &b""[..];
        assert_eq!(tell(&mut silent).await.unwrap(), None);
        let mut half = &b"PRI"[..];
        assert_eq!(tell(&mut half).await.unwrap(), Some((Spoken::Http1, Bytes::from_static(b"PRI"))));
    }
}
