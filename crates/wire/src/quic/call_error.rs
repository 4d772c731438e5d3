//! What it means for a call that its stream or its connection ended before the answer: whether it may have run.

use std::time::Duration;

use nearpath_types::head::HeadError;
use quinn::{ConnectionError, ReadError};

use super::close_code;
use super::stream_body::StreamBodyError;
use crate::mtls::is_certificate_alert;

/// Why a call has no answer.
#[derive(Debug, thiserror::Error)]
pub enum QuicCallError {
    /// The callee has not seen it: making it again is safe.
    #[error("not sent: {0}")]
    NotRun(String),
    /// The head is larger than a head may be.
    #[error("the request's head cannot be sent: {0}")]
    InvalidHead(#[from] HeadError),
    /// It went in the first flight, and nothing came back, as where UDP is blocked in one direction or in both; it may have run.
    #[error("no answer over UDP within {0:?}; it may have run")]
    NoResponse(Duration),
    /// It broke off; it may have run.
    #[error("{0}")]
    Interrupted(#[from] StreamBodyError),
}

/// What came of one try.
pub(super) enum CallFailure {
    /// The worker did not take the first flight: nothing of it was looked at.
    EarlyDataRejected,
    Final(QuicCallError),
}

impl CallFailure {
    pub(super) fn classify(error: StreamBodyError) -> Self {
        match &error {
            StreamBodyError::Stream(ReadError::ZeroRttRejected) => Self::EarlyDataRejected,
            StreamBodyError::Stream(ReadError::Reset(number)) if *number == close_code::NOT_RUN => {
                Self::Final(QuicCallError::NotRun("the worker is stopping".to_owned()))
            }
            StreamBodyError::Stream(ReadError::ConnectionLost(
                ConnectionError::ApplicationClosed(close),
            )) if [close_code::FULL, close_code::REFUSED].contains(&close.error_code) => {
                Self::Final(QuicCallError::NotRun(
                    String::from_utf8_lossy(&close.reason).into_owned(),
                ))
            }
            _ => Self::Final(QuicCallError::Interrupted(error)),
        }
    }

    pub(super) fn into_error(self) -> QuicCallError {
        match self {
            Self::Final(error) => error,
            Self::EarlyDataRejected => {
                QuicCallError::NotRun("the worker did not take the first flight".to_owned())
            }
        }
    }
}

impl From<QuicCallError> for CallFailure {
    fn from(error: QuicCallError) -> Self {
        Self::Final(error)
    }
}

/// Whether the worker did not accept the caller's certificate: without a session it looks at that last of all, when the caller's handshake is
/// complete. Nothing that came was looked at.
pub(super) fn is_certificate_refused(error: &StreamBodyError) -> bool {
    /// RFC 9001 section 4.8: TLS alerts as errors of QUIC.
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
