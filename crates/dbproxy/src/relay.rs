//! Polled reads and writes between sockets and buffers, and the timers that bound a relay.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
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

/// Writes until the buffer is empty or the socket is full. Returns the number of bytes written.
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
            Poll::Pending if written > 0 => return Poll::Ready(Ok(written)),
            Poll::Pending => return Poll::Pending,
        }
    }
    // A TLS stream may still hold bytes that `poll_write` accepted; without the flush the peer
    // would wait for them.
    ready!(Pin::new(to).poll_flush(cx))?;
    Poll::Ready(Ok(written))
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
