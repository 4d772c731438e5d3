//! TLS over TCP between parts of nearpath: HTTP/1.1 and HTTP/2 with certificates on both sides, the
//! same identities as over QUIC.
//!
//! It carries calls where UDP is blocked, and where a function asks for it
//! (`nearpath.io/transport`). A caller has an [`MtlsConnector`], a worker an [`MtlsAcceptor`]. Both
//! check the peer's certificate for every connection, also when a session is resumed. TLS handshake
//! errors have no text: a peer that has proved its key but is not admitted gets an HTTP response.
//! On a port that also takes plain HTTP, the first byte gives the protocol ([`DetectedProtocol`]).

/// Implements `AsyncWrite` for a type that changes only reads, by forwarding to its field `stream`.
macro_rules! forward_writes {
    ($type:ident, $($bound:tt)+) => {
        impl<S: $($bound)+> AsyncWrite for $type<S> {
            fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
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

            fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                Pin::new(&mut self.stream).poll_shutdown(cx)
            }
        }
    };
}
use forward_writes;

mod acceptor;
mod caller_stream;
mod config;
mod connector;
mod tls_detection;

pub use acceptor::{AcceptedPeer, MtlsAcceptError, MtlsAcceptor};
pub(crate) use caller_stream::is_certificate_alert;
pub use caller_stream::{CallerStream, CertificateVerdict};
pub(crate) use config::tls13_server_config;
pub use connector::{AlpnProtocol, MtlsConnector, TlsDialError, TlsVersion};
pub use tls_detection::{DetectedProtocol, PeekedStream};

pub use crate::quic::config::TlsConfigError;
pub use tokio_rustls::server::TlsStream as ServerStream;
