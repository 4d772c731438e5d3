//! Detection of TLS on a port that also takes plain HTTP, by the first byte.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

/// Content type of handshake records (RFC 8446 section 5.1). No HTTP method starts with it (RFC
/// 9110 section 5.6.2), nor does HTTP/2.
const TLS_HANDSHAKE_RECORD: u8 = 0x16;
/// Bytes of the first read: enough for a ClientHello with a session, or for most heads.
const FIRST_READ_BYTES: usize = 2048;

/// Protocol that a connection starts with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DetectedProtocol {
    /// A TLS handshake.
    Tls,
    /// Anything else, also an empty stream: HTTP handles it.
    Plain,
}

impl DetectedProtocol {
    /// Detects the protocol by the first bytes. One byte is enough.
    pub fn detect(first: &[u8]) -> Self {
        if first.first() == Some(&TLS_HANDSHAKE_RECORD) {
            Self::Tls
        } else {
            Self::Plain
        }
    }
}

/// A stream whose first bytes were read and will be read again. Detection costs no extra system
/// call, because it replaces the protocol's first read.
#[derive(Debug)]
pub struct PeekedStream<S> {
    peeked: Bytes,
    stream: S,
}

impl<S: AsyncRead + Unpin> PeekedStream<S> {
    /// Waits for the first bytes. Cancelling it loses no data.
    ///
    /// # Errors
    /// Errors of the stream.
    pub async fn peek(mut stream: S) -> io::Result<Self> {
        let mut first = BytesMut::with_capacity(FIRST_READ_BYTES);
        stream.read_buf(&mut first).await?;
        Ok(Self {
            peeked: first.freeze(),
            stream,
        })
    }

    /// The stream itself.
    pub fn get_ref(&self) -> &S {
        &self.stream
    }

    /// Protocol that the stream starts with.
    pub fn detected_protocol(&self) -> DetectedProtocol {
        DetectedProtocol::detect(&self.peeked)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for PeekedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.peeked.is_empty() {
            return Pin::new(&mut self.stream).poll_read(cx, buf);
        }
        // The reader's buffer may be smaller than the detected bytes.
        let count = buf.remaining().min(self.peeked.len());
        buf.put_slice(&self.peeked[..count]);
        self.peeked.advance(count);
        if self.peeked.is_empty() {
            // frees the buffer, which the connection would keep for its whole life
            self.peeked = Bytes::new();
        }
        Poll::Ready(Ok(()))
    }
}

super::forward_writes!(PeekedStream, AsyncWrite + Unpin);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn http_is_never_taken_for_tls() {
        for method in [
            "GET / HTTP/1.1",
            "post /",
            "PRI * HTTP/2.0",
            "!#$%&'*+-.^_`|~0 /",
            "\r\nGET /",
            "",
        ] {
            assert_eq!(
                DetectedProtocol::detect(method.as_bytes()),
                DetectedProtocol::Plain,
                "{method}"
            );
        }
        assert_eq!(
            DetectedProtocol::detect(&[0x16, 3, 1]),
            DetectedProtocol::Tls
        );
        assert_eq!(
            [
                DetectedProtocol::detect(&[0x15]),
                DetectedProtocol::detect(&[0x17])
            ],
            [DetectedProtocol::Plain; 2],
            "an alert or data begin nothing"
        );
    }

    proptest! {
        #[test]
        fn the_first_byte_decides_and_nothing_is_lost(
            bytes in proptest::collection::vec(any::<u8>(), 0..5000),
            pieces in proptest::collection::vec(1usize..3000, 1..20),
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let (opening, read) = runtime.block_on(async {
                let (mut there, here) = tokio::io::duplex(8192);
                tokio::io::AsyncWriteExt::write_all(&mut there, &bytes).await.unwrap();
                drop(there);
                let mut stream = PeekedStream::peek(here).await.unwrap();
                let (opening, mut read) = (stream.detected_protocol(), Vec::new());
                for piece in pieces.iter().cycle() {
                    let mut part = vec![0; *piece];
                    match stream.read(&mut part).await.unwrap() {
                        0 => break,
                        count => read.extend_from_slice(&part[..count]),
                    }
                }
                (opening, read)
            });
            let tls = bytes.first() == Some(&0x16);
            prop_assert_eq!(opening == DetectedProtocol::Tls, tls);
            prop_assert_eq!(read, bytes);
        }
    }
}
