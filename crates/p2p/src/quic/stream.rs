//! Stream of the QUIC connection, with a socket's semantics.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use quinn::{Connection, ConnectionError, Endpoint, RecvStream, SendStream, StoppedError, VarInt};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::migrate::{CloseFuture, DirectConnection};

/// Time for the last written bytes to reach the peer.
const LINGER_TIMEOUT: Duration = Duration::from_secs(10);
/// Application error code: the connection is no longer needed.
const DONE_CODE: VarInt = VarInt::from_u32(0);

type FinishFuture = Pin<Box<dyn Future<Output = io::Result<()>> + Send>>;

/// Both directions of the stream.
///
/// No kernel continues for it when the process ends. A shutdown therefore completes when the peer
/// has everything, and [`DirectConnection::linger_future`] when the peer knows that.
pub struct QuicDirectStream {
    recv: RecvStream,
    send: SendStream,
    connection: Connection,
    endpoint: Endpoint,
    finishing: Option<FinishFuture>,
}

impl fmt::Debug for QuicDirectStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream")
            .field("connection", &self.connection)
            .finish_non_exhaustive()
    }
}

impl QuicDirectStream {
    pub(super) fn new(
        endpoint: Endpoint,
        connection: Connection,
        send: SendStream,
        recv: RecvStream,
    ) -> Self {
        Self {
            recv,
            send,
            connection,
            endpoint,
            finishing: None,
        }
    }

    fn finish_sending(&mut self) -> FinishFuture {
        let _ = self.send.finish(); // finished already, or the peer has stopped reading
        let delivered = self.send.stopped();
        Box::pin(async move {
            // A peer that has vanished must not hold the process.
            let delivered = tokio::time::timeout(LINGER_TIMEOUT, delivered).await;
            match delivered {
                Ok(Err(StoppedError::ConnectionLost(ConnectionError::ApplicationClosed(
                    closed,
                )))) if closed.error_code != DONE_CODE => Err(io::Error::new(
                    io::ErrorKind::ConnectionReset,
                    closed.to_string(),
                )),
                // A peer that is done closes the connection and need not acknowledge the rest. One
                // that did not read
                // everything stops the stream, which a write reports. TCP behaves the same.
                _ => Ok(()),
            }
        })
    }
}

impl DirectConnection for QuicDirectStream {
    fn linger_future(&mut self) -> Option<CloseFuture> {
        let finishing = self
            .finishing
            .take()
            .unwrap_or_else(|| self.finish_sending());
        let (connection, endpoint) = (self.connection.clone(), self.endpoint.clone());
        Some(Box::pin(async move {
            let _ = finishing.await;
            // Closing at once would discard unacknowledged data; `delivered` has waited for it.
            connection.close(DONE_CODE, b"");
            // `wait_idle` keeps the endpoint alive until the close frame is sent and drained (RFC
            // 9000 section 10.2).
            endpoint.wait_idle().await;
        }))
    }
}

impl AsyncRead for QuicDirectStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        AsyncRead::poll_read(Pin::new(&mut self.recv), cx, buf)
    }
}

impl AsyncWrite for QuicDirectStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        AsyncWrite::poll_write(Pin::new(&mut self.send), cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        AsyncWrite::poll_flush(Pin::new(&mut self.send), cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The future is kept across polls: `stopped` may be awaited once only.
        let mut finishing = self
            .finishing
            .take()
            .unwrap_or_else(|| self.finish_sending());
        let finished = finishing.as_mut().poll(cx);
        // A completed future must not be polled again; the next one completes at once.
        self.finishing = finished.is_pending().then_some(finishing);
        finished
    }
}
