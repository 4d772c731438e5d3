//! A caller's connection with TLS, and whether the worker has turned its certificate down.
//!
//! In TLS 1.3 the caller is done with the handshake before the worker has looked at its certificate (RFC 8446 section 2): the refusal comes
//! as an alert, when a request may be on its way already. Such an alert is sent instead of the handshake's end, so nothing that came was
//! looked at; which HTTP, that only sees the connection break, cannot tell.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use rustls::{AlertDescription, ClientConnection};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::client::TlsStream;

/// What the worker said of the caller's certificate. Clones are of the same connection.
#[derive(Debug, Clone, Default)]
pub struct CertificateVerdict(Arc<OnceLock<AlertDescription>>);

impl CertificateVerdict {
    /// Why the worker turned the certificate down; `NoConnection`: it did not, so far. If it did, it has looked at nothing that was sent.
    pub fn refusal(&self) -> Option<String> {
        let alert = self.0.get()?;
        Some(format!(
            "the worker does not accept this caller's certificate (TLS alert {alert:?})"
        ))
    }

    fn note_alert(&self, error: &io::Error) {
        let error = error.get_ref().and_then(|error| error.downcast_ref());
        if let Some(rustls::Error::AlertReceived(alert)) = error
            && is_certificate_alert(u8::from(*alert))
        {
            let _ = self.0.set(*alert); // the first one counts; there is no second
        }
    }
}

/// Whether an alert says that the peer's certificate, or its proof of the key, is not accepted (RFC 8446 section 6.2). There is no other
/// occasion for it than the handshake.
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
        A::DecryptError, // another authority of the same name: the signature is not its own
        A::CertificateRequired,
    ];
    all.map(u8::from).contains(&alert)
}

/// See the module's text.
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

    /// What lies below, and the session.
    pub fn get_ref(&self) -> (&S, &ClientConnection) {
        self.stream.get_ref()
    }

    /// What the worker will say of the caller's certificate.
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

super::writes_below!(CallerStream, AsyncRead + AsyncWrite + Unpin);

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
