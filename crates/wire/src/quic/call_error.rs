//! Outcome of a call whose stream or connection ended before the response: whether it may have run.

use std::time::Duration;

use nearpath_types::head::HeadError;
use quinn::{ConnectionError, ReadError};

use super::close_code;
use super::stream_body::StreamBodyError;
use crate::mtls::is_certificate_alert;

/// Reasons why a call has no response.
#[derive(Debug, thiserror::Error)]
pub enum QuicCallError {
    /// The callee has not run it: repeating it is safe.
    #[error("not run: {0}")]
    NotRun(String),
    /// The head exceeds its limits.
    #[error("cannot send the request head: {0}")]
    InvalidHead(#[from] HeadError),
    /// The call went in the first flight and nothing was received, as where UDP is blocked in a
    /// direction. It may have run.
    #[error("no response over UDP within {0:?}; the call may have run")]
    NoResponse(Duration),
    /// The call was interrupted; it may have run.
    #[error("{0}")]
    Interrupted(#[from] StreamBodyError),
}

/// Failure of one attempt.
pub(super) enum CallFailure {
    /// The worker rejected the first flight and read nothing of it.
    EarlyDataRejected,
    Final(QuicCallError),
}

impl CallFailure {
    pub(super) fn classify(error: StreamBodyError) -> Self {
        match &error {
            StreamBodyError::Stream(ReadError::ZeroRttRejected) => Self::EarlyDataRejected,
            // The worker resets with this code only before its handler has seen the call.
            StreamBodyError::Stream(ReadError::Reset(number)) if *number == close_code::NOT_RUN => {
                Self::Final(QuicCallError::NotRun("the worker is stopping".to_owned()))
            }
            StreamBodyError::Stream(ReadError::ConnectionLost(
                ConnectionError::ApplicationClosed(close),
                // Both codes promise that no call of the connection was run, see
                // `contract/quic.md`.
            )) if [close_code::FULL, close_code::REFUSED].contains(&close.error_code) => {
                Self::Final(QuicCallError::NotRun(
                    String::from_utf8_lossy(&close.reason).into_owned(),
                ))
            }
            // Anything else is ambiguous, so the call must not be repeated.
            _ => Self::Final(QuicCallError::Interrupted(error)),
        }
    }

    pub(super) fn into_error(self) -> QuicCallError {
        match self {
            Self::Final(error) => error,
            Self::EarlyDataRejected => {
                QuicCallError::NotRun("the worker rejected the first flight".to_owned())
            }
        }
    }
}

impl From<QuicCallError> for CallFailure {
    fn from(error: QuicCallError) -> Self {
        Self::Final(error)
    }
}

/// Returns true if the worker refused the caller's certificate. Without a session the worker checks
/// it last, when the caller has completed the handshake. Nothing was run.
pub(super) fn is_certificate_refused(error: &StreamBodyError) -> bool {
    /// TLS alerts as QUIC error codes (RFC 9001 section 4.8).
    const CRYPTO_ERROR_BASE: u64 = 0x100;
    let StreamBodyError::Stream(ReadError::ConnectionLost(ConnectionError::ConnectionClosed(
        close,
    ))) = error
    else {
        return false;
    };
    let alert = u64::from(close.error_code)
        .checked_sub(CRYPTO_ERROR_BASE)
        .and_then(|alert| u8::try_from(alert).ok());
    alert.is_some_and(is_certificate_alert)
}
