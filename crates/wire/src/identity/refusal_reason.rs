//! Reasons of refusals, for metrics.

use quinn::{ConnectionError, TransportErrorCode};
use rustls::{AlertDescription, CertificateError};

use super::PeerRefusal;

/// Kind of a refusal: one value of a metric's label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalReason {
    /// The certificate has expired.
    Expired,
    /// No accepted root signed the certificate.
    UnknownRoot,
    /// The identity in the certificate is not one that may connect.
    Identity,
    /// The certificate was revoked.
    Revoked,
    /// The peer may not make this call.
    NotAllowed,
    /// The handshake was not complete in time.
    Timeout,
    /// The handshake failed for another cause.
    Handshake,
}

impl RefusalReason {
    /// Returns the value of the label.
    pub fn name(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::UnknownRoot => "unknown_root",
            Self::Identity => "identity",
            Self::Revoked => "revoked",
            Self::NotAllowed => "not_allowed",
            Self::Timeout => "timeout",
            Self::Handshake => "handshake",
        }
    }

    /// Returns the reason of a failed QUIC handshake.
    pub(crate) fn of_connection(error: &ConnectionError) -> Self {
        match error {
            ConnectionError::TransportError(error) => Self::of_code(error.code),
            _ => Self::Handshake,
        }
    }

    /// Returns the reason of an error code, which is that of a TLS alert (RFC 9001 section 4.8).
    fn of_code(code: TransportErrorCode) -> Self {
        const CRYPTO_ERROR: u64 = 0x100;
        let alert = u64::from(code).checked_sub(CRYPTO_ERROR);
        let alert = alert.and_then(|alert| u8::try_from(alert).ok());
        alert.map_or(Self::Handshake, |alert| Self::of_alert(alert.into()))
    }

    fn of_alert(alert: AlertDescription) -> Self {
        match alert {
            AlertDescription::CertificateExpired => Self::Expired,
            AlertDescription::UnknownCA
            | AlertDescription::DecryptError
            | AlertDescription::BadCertificate => Self::UnknownRoot,
            AlertDescription::CertificateRevoked => Self::Revoked,
            _ => Self::Handshake,
        }
    }
}

impl From<&PeerRefusal> for RefusalReason {
    fn from(refusal: &PeerRefusal) -> Self {
        match refusal {
            PeerRefusal::Expired(_) | PeerRefusal::NotYetValid(_) => Self::Expired,
            PeerRefusal::UnknownRoot(_) => Self::UnknownRoot,
            PeerRefusal::Revoked(_) => Self::Revoked,
            _ => Self::Identity,
        }
    }
}

impl From<&rustls::Error> for RefusalReason {
    fn from(error: &rustls::Error) -> Self {
        use CertificateError::{
            BadSignature, Expired, ExpiredContext, NotValidYet, NotValidYetContext, UnknownIssuer,
        };
        match error {
            rustls::Error::InvalidCertificate(
                Expired | ExpiredContext { .. } | NotValidYet | NotValidYetContext { .. },
            ) => Self::Expired,
            // A foreign root of the same name has another key.
            rustls::Error::InvalidCertificate(UnknownIssuer | BadSignature) => Self::UnknownRoot,
            _ => Self::Handshake,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_handshake_has_the_reason_of_its_alert() {
        let of = |alert: AlertDescription| {
            RefusalReason::of_code(TransportErrorCode::crypto(alert.into()))
        };
        let expected = [
            (AlertDescription::CertificateExpired, RefusalReason::Expired),
            (AlertDescription::UnknownCA, RefusalReason::UnknownRoot),
            (AlertDescription::InternalError, RefusalReason::Handshake),
        ];
        for (alert, reason) in expected {
            assert_eq!(of(alert), reason);
        }
        let timeout = RefusalReason::of_connection(&ConnectionError::TimedOut);
        assert_eq!(timeout, RefusalReason::Handshake);
    }
}
