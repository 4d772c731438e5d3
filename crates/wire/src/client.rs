//! Connections to an instance: HTTP/1.1 by default, HTTP/2 for gRPC. They run without TLS (h2c by
//! prior knowledge, RFC 9113 section 3.3) or on a TLS stream ([`crate::mtls`]). The task that
//! drives a connection stays on the thread that opened it.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use http_body::Body;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::BoxError;
use crate::local_executor::LocalExec;
use crate::mtls::TlsDialError;

/// Maximum size of a response head, and of the read-ahead buffer, in bytes. The number of header
/// fields keeps hyper's default of 100: any other number costs an allocation for each response.
const MAX_HEAD_BYTES: usize = 64 * 1024;
/// Flow-control window of one stream in bytes.
const STREAM_WINDOW_BYTES: u32 = 1024 * 1024;

/// Reasons why a connection could not be opened. In every case nothing of the request was sent.
#[derive(Debug, thiserror::Error)]
pub enum InstanceConnectError {
    /// Refused, unreachable, or out of file descriptors.
    #[error("cannot connect to {addr}: {source}")]
    Io {
        /// Address that was dialed.
        addr: SocketAddr,
        /// Error of the kernel.
        source: io::Error,
    },
    /// The peer did not respond in time.
    #[error("cannot connect to {addr}: no response within {limit:?}")]
    Timeout {
        /// Address that was dialed.
        addr: SocketAddr,
        /// Time limit.
        limit: Duration,
    },
    /// The TLS connection failed.
    #[error(transparent)]
    Tls(#[from] TlsDialError),
    /// The peer accepted the connection but does not speak HTTP.
    #[error("cannot speak HTTP with {addr}: {source}")]
    Http {
        /// Address that was dialed.
        addr: SocketAddr,
        /// Error of the HTTP handshake.
        source: hyper::Error,
    },
}

async fn connect_tcp(addr: SocketAddr, limit: Duration) -> Result<TcpStream, InstanceConnectError> {
    let stream = match tokio::time::timeout(limit, TcpStream::connect(addr)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(source)) => return Err(InstanceConnectError::Io { addr, source }),
        Err(_) => return Err(InstanceConnectError::Timeout { addr, limit }),
    };
    stream
        .set_nodelay(true)
        .map_err(|source| InstanceConnectError::Io { addr, source })?;
    Ok(stream)
}

/// Opens an HTTP/1.1 connection that can be upgraded. Must run inside a `LocalSet`.
///
/// # Errors
/// See [`InstanceConnectError`].
pub async fn connect_http1<B>(
    addr: SocketAddr,
    limit: Duration,
) -> Result<http1::SendRequest<B>, InstanceConnectError>
where
    B: Body + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    handshake_http1(connect_tcp(addr, limit).await?, addr).await
}

/// Starts HTTP/1.1 on a stream from `addr`. Must run inside a `LocalSet`.
///
/// # Errors
/// [`InstanceConnectError::Http`].
pub async fn handshake_http1<S, B>(
    stream: S,
    addr: SocketAddr,
) -> Result<http1::SendRequest<B>, InstanceConnectError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    B: Body + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    let handshake = http1::Builder::new()
        .max_buf_size(MAX_HEAD_BYTES)
        .handshake(TokioIo::new(stream))
        .await;
    let (sender, connection) =
        handshake.map_err(|source| InstanceConnectError::Http { addr, source })?;
    tokio::task::spawn_local(async move {
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!(%addr, %error, "connection to an instance ended");
        }
    });
    Ok(sender)
}

/// Opens an h2c connection. Must run inside a `LocalSet`.
///
/// # Errors
/// See [`InstanceConnectError`].
pub async fn connect_http2<B>(
    addr: SocketAddr,
    limit: Duration,
) -> Result<http2::SendRequest<B>, InstanceConnectError>
where
    B: Body + Unpin + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    handshake_http2(connect_tcp(addr, limit).await?, addr).await
}

/// Starts HTTP/2 on a stream from `addr`. Must run inside a `LocalSet`.
///
/// # Errors
/// [`InstanceConnectError::Http`].
pub async fn handshake_http2<S, B>(
    stream: S,
    addr: SocketAddr,
) -> Result<http2::SendRequest<B>, InstanceConnectError>
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
    B: Body + Unpin + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    let mut builder = http2::Builder::new(LocalExec);
    builder
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(4 * STREAM_WINDOW_BYTES);
    // Keep-alive needs a timer, and detects an instance whose host disappeared.
    builder.timer(hyper_util::rt::TokioTimer::new());
    builder
        .keep_alive_interval(Duration::from_secs(20))
        .max_header_list_size(MAX_HEAD_BYTES as u32);
    let (sender, connection) = builder
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|source| InstanceConnectError::Http { addr, source })?;
    tokio::task::spawn_local(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%addr, %error, "HTTP/2 connection to an instance ended");
        }
    });
    Ok(sender)
}
