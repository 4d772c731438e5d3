//! Socket that closes in stages where its peer may still be sending.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{LingeringClose, UnreadInput};

/// Socket whose shutdown lasts until its peer has closed, if the peer may still be sending. TLS
/// lies above it, so that dropped bytes are not decrypted.
#[derive(Debug)]
pub struct LingeringStream<S> {
    stream: S,
    unread: UnreadInput,
    /// Boxed: most connections never have it.
    lingering: Option<Box<LingeringClose>>,
}

impl<S> LingeringStream<S> {
    /// Wraps a socket.
    pub fn new(stream: S) -> Self {
        Self {
            stream,
            unread: UnreadInput::default(),
            lingering: None,
        }
    }

    /// Returns the state by which the requests of the connection decide about its close.
    pub fn unread_input(&self) -> UnreadInput {
        self.unread.clone()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for LingeringStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for LingeringStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.lingering.is_none() {
            ready!(Pin::new(&mut this.stream).poll_shutdown(cx))?;
            if !this.unread.is_unread() {
                return Poll::Ready(Ok(()));
            }
        }
        let lingering = this
            .lingering
            .get_or_insert_with(|| Box::new(LingeringClose::begin()));
        lingering.poll_closed(&mut this.stream, cx).map(Ok)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::time::Instant;

    use super::super::{LINGER_READ_TIMEOUT, LINGER_TIMEOUT, MAX_LINGER_BYTES};
    use super::*;

    fn unread_pair() -> (DuplexStream, LingeringStream<DuplexStream>) {
        let (peer, stream) = duplex(64 * 1024);
        let stream = LingeringStream::new(stream);
        stream.unread_input().mark_unread();
        (peer, stream)
    }

    #[tokio::test]
    async fn a_peer_can_send_everything_and_then_read_the_response() {
        let (mut peer, mut stream) = unread_pair();
        stream.write_all(b"no").await.unwrap();
        let closing = tokio::spawn(async move { stream.shutdown().await });
        peer.write_all(&vec![b'x'; 1024 * 1024]).await.unwrap();
        let mut response = String::new();
        peer.read_to_string(&mut response).await.unwrap();
        assert_eq!(response, "no");
        drop(peer);
        closing.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_connection_whose_requests_were_read_closes_at_once() {
        let (_peer, stream) = duplex(64);
        let mut stream = LingeringStream::new(stream);
        stream.shutdown().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_peer_and_a_slow_one_are_left() {
        let (_silent, mut stream) = unread_pair();
        let began = Instant::now();
        stream.shutdown().await.unwrap();
        assert_eq!(began.elapsed().as_secs(), LINGER_READ_TIMEOUT.as_secs());

        let (mut slow, mut stream) = unread_pair();
        let drip = tokio::spawn(async move {
            while slow.write_all(b"x").await.is_ok() {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        });
        let began = Instant::now();
        stream.shutdown().await.unwrap();
        assert_eq!(began.elapsed().as_secs(), LINGER_TIMEOUT.as_secs());
        drop(stream);
        drip.await.unwrap();
    }

    #[tokio::test]
    async fn a_peer_that_sends_without_end_is_left() {
        let (mut peer, mut stream) = unread_pair();
        let sending = tokio::spawn(async move {
            let (piece, mut sent) = (vec![0; 64 * 1024], 0);
            while peer.write_all(&piece).await.is_ok() {
                sent += piece.len() as u64;
            }
            sent
        });
        stream.shutdown().await.unwrap();
        drop(stream);
        assert!(sending.await.unwrap() >= MAX_LINGER_BYTES);
    }
}
