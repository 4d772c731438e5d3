//! Connections to other nodes, made elsewhere.

use std::io;
use std::net::SocketAddr;

use futures_util::future::BoxFuture;
use nearpath_types::NodeName;
use tokio::io::{AsyncRead, AsyncWrite};

/// Stream of bytes to another node.
pub trait DialedStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> DialedStream for T {}

/// Opens connections to other nodes, and checks that they are these nodes.
pub trait NodeDialer: Send + Sync {
    /// Connects to `node` at `addr`. The stream is ready for HTTP/1.1.
    fn dial(
        &self,
        node: &NodeName,
        addr: SocketAddr,
    ) -> BoxFuture<'static, Result<Box<dyn DialedStream>, NodeDialError>>;

    /// Resolves when connections must be opened again, because the certificate that they use was
    /// renewed after this call.
    fn renewed(&self) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }
}

/// Failure to connect to another node.
#[derive(Debug, thiserror::Error)]
pub enum NodeDialError {
    /// No connection.
    #[error("cannot connect: {0}")]
    Connect(#[from] io::Error),
    /// No TLS session; the text is the cause.
    #[error("TLS handshake failed: {0}")]
    Handshake(String),
    /// Certificate of another node, or no valid one; the text is the cause.
    #[error("its certificate is refused: {0}")]
    Certificate(String),
}
