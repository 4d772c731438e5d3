//! Bytes from a socket to a buffer, and back: what relays poll in both directions at once, and until when.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::sync::watch;

/// Read at a time.
const READ_CHUNK_BYTES: usize = 16 * 1024;

/// Reads what is there, once. `Ok(0)`: the other end will send no more.
pub fn poll_fill<S: AsyncRead + Unpin>(
    from: &mut S,
    cx: &mut Context<'_>,
    into: &mut BytesMut,
) -> Poll<io::Result<usize>> {
    into.reserve(READ_CHUNK_BYTES);
    // Made anew for each poll: it holds nothing, and nothing is cleared that is then written over.
    std::pin::pin!(from.read_buf(into)).poll(cx)
}

/// Writes until the buffer is empty; how much it was.
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
    ready!(Pin::new(to).poll_flush(cx))?;
    Poll::Ready(Ok(written))
}

/// Until then; `NoConnection`: for ever.
pub async fn sleep_until(until: Option<Instant>) {
    match until {
        Some(until) => tokio::time::sleep_until(until.into()).await,
        None => std::future::pending().await,
    }
}

/// Until what another holds for as long as something lasts is dropped; never, if there is nothing.
pub async fn wait_sender_dropped(lasts: Option<&mut watch::Receiver<()>>) {
    match lasts {
        Some(lasts) => while lasts.changed().await.is_ok() {},
        None => std::future::pending().await,
    }
}
