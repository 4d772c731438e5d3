//! The connection's one stream, as a socket would be.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use quinn::{Connection, ConnectionError, Endpoint, RecvStream, SendStream, StoppedError, VarInt};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::migrate::{Direct, Later};

/// What was written before the end may take so long to reach the peer.
const LINGER: Duration = Duration::from_secs(10);
/// The connection is needed no more.
const DONE: VarInt = VarInt::from_u32(0);

type Ending = Pin<Box<dyn Future<Output = io::Result<()>> + Send>>;

/// Both directions. No kernel goes on with it when the process ends: so shutting it down takes until the peer has
/// everything, and [`Direct::linger`] until it knows that.
pub struct Stream {
    recv: RecvStream,
    send: SendStream,
    connection: Connection,
    endpoint: Endpoint,
    ending: Option<Ending>,
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("connection", &self.connection).finish_non_exhaustive()
    }
}

impl Stream {
    pub(super) fn new(endpoint: Endpoint, connection: Connection, send: SendStream, recv: RecvStream) -> Self {
        Self { recv, send, connection, endpoint, ending: None }
    }

    fn end(&mut self) -> Ending {
        let _ = self.send.finish(); // it was, or the peer has stopped reading
        let arrived = self.send.stopped();
        Box::pin(async move {
            let arrived = tokio::time::timeout(LINGER, arrived).await;
            match arrived {
                Ok(Err(StoppedError::ConnectionLost(ConnectionError::ApplicationClosed(closed))))
                    if closed.error_code != DONE =>
                {
                    Err(io::Error::new(io::ErrorKind::ConnectionReset, closed.to_string()))
                }
                // A peer that is done closes the connection, and need not say that it got the last of it. One that did not
                // read everything stops the stream, which a write reports; so it is with TCP.
                _ => Ok(()),
            }
        })
    }
}

impl Direct for Stream {
    fn linger(&mut self) -> Option<Later> {
        let ending = self.ending.take().unwrap_or_else(|| self.end());
        let (connection, endpoint) = (self.connection.clone(), self.endpoint.clone());
        Some(Box::pin(async move {
            let _ = ending.await;
            connection.close(DONE, b"");
            endpoint.wait_idle().await;
        }))
    }
}

impl AsyncRead for Stream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        AsyncRead::poll_read(Pin::new(&mut self.recv), cx, buf)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        AsyncWrite::poll_write(Pin::new(&mut self.send), cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        AsyncWrite::poll_flush(Pin::new(&mut self.send), cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut ending = self.ending.take().unwrap_or_else(|| self.end());
        let ended = ending.as_mut().poll(cx);
        // A future that is ready is not asked again: the next one is ready at once.
        self.ending = ended.is_pending().then_some(ending);
        ended
    }
}
