//! A caller's TLS connection, and the worker's decision about the caller's certificate.
//!
//! In TLS 1.3 the caller completes the handshake before the worker has checked its certificate (RFC
//! 8446 section 2). A refusal arrives as an alert, when a request may be on its way already. The
//! worker sends that alert instead of completing the handshake, so it has read nothing of the
//! request. HTTP cannot tell this: it only sees a broken connection.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use rustls::{AlertDescription, ClientConnection};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::client::TlsStream;

/// The worker's decision about the caller's certificate. Clones belong to the same connection.
#[derive(Debug, Clone, Default)]
pub struct CertificateVerdict(Arc<OnceLock<AlertDescription>>);

impl CertificateVerdict {
    /// Reason why the worker refused the certificate; `None`: no refusal so far. After a refusal
    /// the worker has processed nothing.
    pub fn refusal(&self) -> Option<String> {
        let alert = self.0.get()?;
        Some(format!(
            "the worker refused this caller's certificate (TLS alert {alert:?})"
        ))
    }

    fn note_alert(&self, error: &io::Error) {
        // tokio-rustls wraps rustls's errors in `io::Error`.
        let error = error.get_ref().and_then(|error| error.downcast_ref());
        if let Some(rustls::Error::AlertReceived(alert)) = error
            && is_certificate_alert(u8::from(*alert))
        {
            // fails only if an alert is noted already, and the first one holds
            let _ = self.0.set(*alert);
        }
    }
}

/// Returns true for an alert that refuses the peer's certificate or its proof of the key (RFC 8446
/// section 6.2). Such alerts are sent during the handshake only.
pub(crate) fn is_certificate_alert(alert: u8) -> bool {
    use AlertDescription as A;
    let all = [
        A::BadCertificate,
        A::UnsupportedCertificate,
        A::CertificateRevoked,
        A::CertificateExpired,
        A::CertificateUnknown,
        A::UnknownCA,
        A::AccessDenied,
        A::DecryptError, // an authority of the same name signed: the signature does not verify
        A::CertificateRequired,
    ];
    all.map(u8::from).contains(&alert)
}

/// A TLS stream that notes a refused certificate.
#[derive(Debug)]
pub struct CallerStream<S> {
    stream: TlsStream<S>,
    verdict: CertificateVerdict,
}

impl<S> CallerStream<S> {
    pub(super) fn new(stream: TlsStream<S>) -> Self {
        Self {
            stream,
            verdict: CertificateVerdict::default(),
        }
    }

    /// The underlying stream and the TLS session.
    pub fn get_ref(&self) -> (&S, &ClientConnection) {
        self.stream.get_ref()
    }

    /// The underlying stream and the TLS session, for a caller that drives them itself. It reports errors
    /// with [`note_error`](Self::note_error).
    pub fn get_mut(&mut self) -> (&mut S, &mut ClientConnection) {
        self.stream.get_mut()
    }

    /// Notes an error of a read, which may be a refused certificate.
    pub fn note_error(&self, error: &io::Error) {
        self.verdict.note_alert(error);
    }

    /// The worker's decision about the caller's certificate.
    pub fn verdict(&self) -> &CertificateVerdict {
        &self.verdict
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for CallerStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = ready!(Pin::new(&mut self.stream).poll_read(cx, buf));
        Poll::Ready(read.inspect_err(|error| self.verdict.note_alert(error)))
    }
}

super::forward_writes!(CallerStream, AsyncRead + AsyncWrite + Unpin);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alerts_after_the_handshake_are_no_refusal() {
        use AlertDescription as A;
        let verdict = |error: io::Error| {
            let verdict = CertificateVerdict::default();
            verdict.note_alert(&error);
            verdict.refusal()
        };
        let alert = |alert| {
            verdict(io::Error::new(
                io::ErrorKind::InvalidData,
                rustls::Error::AlertReceived(alert),
            ))
        };
        for later in [
            A::CloseNotify,
            A::BadRecordMac,
            A::InternalError,
            A::UnexpectedMessage,
            A::UserCanceled,
        ] {
            assert_eq!(alert(later), None, "{later:?}");
        }
        assert!(alert(A::UnknownCA).unwrap().contains("UnknownCA"));
        assert_eq!(verdict(io::ErrorKind::ConnectionReset.into()), None);
    }
}
