//! Polled reads and writes between sockets and buffers, and the timers that bound a relay.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::sync::watch;

/// Bytes read at a time: 16 KiB, the content of the largest TLS record (RFC 8446 section 5.1).
const READ_CHUNK_BYTES: usize = 16 * 1024;

/// Reads once into `into`. `Ok(0)` means that the peer has closed its sending side.
pub fn poll_fill<S: AsyncRead + Unpin>(
    from: &mut S,
    cx: &mut Context<'_>,
    into: &mut BytesMut,
) -> Poll<io::Result<usize>> {
    into.reserve(READ_CHUNK_BYTES);
    // The future is created anew for each poll. It owns no state, and `read_buf` appends without
    // zeroing the spare capacity first.
    std::pin::pin!(from.read_buf(into)).poll(cx)
}

/// Writes until the buffer is empty or the socket is full. Returns the number of bytes written;
/// `Pending` if there was nothing to write, or no space.
///
/// A TLS stream accepts bytes before its socket does. So the caller polls again after a wake-up,
/// even with an empty buffer.
pub fn poll_drain<S: AsyncWrite + Unpin>(
    to: &mut S,
    cx: &mut Context<'_>,
    from: &mut BytesMut,
) -> Poll<io::Result<usize>> {
    let mut written = 0;
    while !from.is_empty() {
        match Pin::new(&mut *to).poll_write(cx, from)? {
            Poll::Ready(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
            Poll::Ready(count) => {
                bytes::Buf::advance(from, count);
                written += count;
            }
            Poll::Pending => break,
        }
    }
    // A flush that is pending has registered the waker, and goes on with the next call.
    let _: Poll<()> = Pin::new(to).poll_flush(cx)?;
    if written > 0 {
        Poll::Ready(Ok(written))
    } else {
        Poll::Pending
    }
}

/// Sleeps until `until`, or forever with `None`.
pub async fn sleep_until(until: Option<Instant>) {
    match until {
        Some(until) => tokio::time::sleep_until(until.into()).await,
        None => std::future::pending().await,
    }
}

/// Waits until the sender of `alive` is dropped, or forever with `None`.
pub async fn wait_sender_dropped(alive: Option<&mut watch::Receiver<()>>) {
    match alive {
        // A value sent on the channel means nothing; only the dropped sender ends the loop.
        Some(alive) => while alive.changed().await.is_ok() {},
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    /// A stream that accepts all bytes, and sends them with the second flush, as TLS does while its
    /// socket is full.
    #[derive(Default)]
    struct BufferingStream {
        accepted: usize,
        flushes: u32,
        sent: usize,
    }

    impl AsyncWrite for BufferingStream {
        fn poll_write(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            self.accepted += bytes.len();
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.flushes += 1;
            if self.flushes == 1 {
                return Poll::Pending;
            }
            self.sent = self.accepted;
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[test]
    fn bytes_that_a_stream_has_accepted_are_sent_with_an_empty_buffer() {
        let (mut stream, mut cx) = (
            BufferingStream::default(),
            Context::from_waker(Waker::noop()),
        );
        let mut buffer = BytesMut::from(&b"answer"[..]);
        let written = poll_drain(&mut stream, &mut cx, &mut buffer);
        assert!(matches!(written, Poll::Ready(Ok(6))), "{written:?}");
        assert_eq!(stream.sent, 0);
        let nothing = poll_drain(&mut stream, &mut cx, &mut buffer);
        assert!(nothing.is_pending(), "{nothing:?}");
        assert_eq!(stream.sent, 6);
    }
}
