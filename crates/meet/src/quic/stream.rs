//! The connection's one stream, as a socket would be.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use quinn::{Connection, Endpoint, RecvStream, SendStream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What was written before the end may take so long to reach the peer.
const LINGER: Duration = Duration::from_secs(10);

/// Both directions. When it is dropped, what was written still goes, as with a socket of TCP.
#[derive(Debug)]
pub struct Stream {
    recv: RecvStream,
    send: SendStream,
    connection: Connection,
    endpoint: Endpoint,
}

impl Stream {
    pub(super) fn new(endpoint: Endpoint, connection: Connection, send: SendStream, recv: RecvStream) -> Self {
        Self { recv, send, connection, endpoint }
    }

    /// The connection, for its statistics.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let _ = self.send.finish(); // it was, or the peer has stopped reading
        let (arrived, connection, endpoint) = (self.send.stopped(), self.connection.clone(), self.endpoint.clone());
        runtime.spawn(async move {
            let _ = tokio::time::timeout(LINGER, arrived).await;
            connection.close(quinn::VarInt::from_u32(0), b"");
            endpoint.wait_idle().await;
        });
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
        AsyncWrite::poll_shutdown(Pin::new(&mut self.send), cx)
    }
}
