//! TLS over TCP between our own parts: HTTP/1.1 and HTTP/2 with certificates on both sides, the same identities as over QUIC.
//!
//! It is what carries calls where UDP does not get through, and where a function asks for it (`nearpath.io/transport`). A caller has
//! a [`MtlsConnector`], a worker an [`MtlsAcceptor`]; both look at the peer's certificate for every connection, also when a session is
//! resumed. Handshake errors have no text of their own in TLS: who has proved a key but is not admitted gets its answer in
//! HTTP. On a port that takes plain HTTP as well, the first byte tells which it is ([`Opening`]).

/// `AsyncWrite` for a type that changes only what is read from its field `stream`.
macro_rules! writes_below {
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
use writes_below;

mod acceptor;
mod caller_stream;
mod config;
mod connector;
mod tls_detection;

pub use acceptor::{AcceptedPeer, MtlsAcceptError, MtlsAcceptor};
pub(crate) use caller_stream::is_certificate_alert;
pub use caller_stream::{CallerStream, CertificateVerdict};
pub use connector::{AlpnProtocol, MtlsConnector, TlsDialError, TlsVersion};
pub use tls_detection::{DetectedProtocol, PeekedStream};

pub use crate::quic::config::TlsConfigError;
pub use tokio_rustls::server::TlsStream as ServerStream;
