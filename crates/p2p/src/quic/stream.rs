//! The connection's one stream, as a socket would be.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use quinn::{Connection, ConnectionError, Endpoint, RecvStream, SendStream, StoppedError, VarInt};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::migrate::{CloseFuture, DirectConnection};

/// What was written before the end may take so long to reach the peer.
const LINGER_TIMEOUT: Duration = Duration::from_secs(10);
/// The connection is needed no more.
const DONE_CODE: VarInt = VarInt::from_u32(0);

type FinishFuture = Pin<Box<dyn Future<Output = io::Result<()>> + Send>>;

/// Both directions. No kernel goes on with it when the process ends: so shutting it down takes until the peer has
/// everything, and [`Direct::linger_future`] until it knows that.
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
        let _ = self.send.finish(); // it was, or the peer has stopped reading
        let delivered = self.send.stopped();
        Box::pin(async move {
            let delivered = tokio::time::timeout(LINGER_TIMEOUT, delivered).await;
            match delivered {
                Ok(Err(StoppedError::ConnectionLost(ConnectionError::ApplicationClosed(
                    closed,
                )))) if closed.error_code != DONE_CODE => Err(io::Error::new(
                    io::ErrorKind::ConnectionReset,
                    closed.to_string(),
                )),
                // A peer that is done closes the connection, and need not say that it got the last of it. One that did not
                // read everything stops the stream, which a write reports; so it is with TCP.
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
            connection.close(DONE_CODE, b"");
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
        let mut finishing = self
            .finishing
            .take()
            .unwrap_or_else(|| self.finish_sending());
        let finished = finishing.as_mut().poll(cx);
        // A future that is ready is not asked again: the next one is ready at once.
        self.finishing = finished.is_pending().then_some(finishing);
        finished
    }
}
