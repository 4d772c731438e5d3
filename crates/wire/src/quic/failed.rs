//! What it means for a call that its stream or its connection ended before the answer: whether it may have run.

use std::time::Duration;

use nearpath_types::head::BadHead;
use quinn::{ConnectionError, ReadError};

use super::body::BodyError;
use super::code;
use crate::mutual::is_of_certificates;

/// Why a call has no answer.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The callee has not seen it: making it again is safe.
    #[error("not sent: {0}")]
    Unseen(String),
    /// The head is larger than a head may be.
    #[error("the request's head cannot be sent: {0}")]
    Head(#[from] BadHead),
    /// It went in the first flight, and nothing came back, as where UDP is blocked in one direction or in both; it may have run.
    #[error("no answer over UDP within {0:?}; it may have run")]
    Silent(Duration),
    /// It broke off; it may have run.
    #[error("{0}")]
    Broken(#[from] BodyError),
}

/// What came of one try.
pub(super) enum Failed {
    /// The worker did not take the first flight: nothing of it was looked at.
    NotTaken,
    For(CallError),
}

impl Failed {
    pub(super) fn of(error: BodyError) -> Self {
        match &error {
            BodyError::Stream(ReadError::ZeroRttRejected) => Self::NotTaken,
            BodyError::Stream(ReadError::Reset(number)) if *number == code::UNSEEN => {
                Self::For(CallError::Unseen("the worker is stopping".to_owned()))
            }
            BodyError::Stream(ReadError::ConnectionLost(ConnectionError::ApplicationClosed(close)))
                if [code::FULL, code::REFUSED].contains(&close.error_code) =>
            {
                Self::For(CallError::Unseen(String::from_utf8_lossy(&close.reason).into_owned()))
            }
            _ => Self::For(CallError::Broken(error)),
        }
    }

    pub(super) fn into_error(self) -> CallError {
        match self {
            Self::For(error) => error,
            Self::NotTaken => CallError::Unseen("the worker did not take the first flight".to_owned()),
        }
    }
}

impl From<CallError> for Failed {
    fn from(error: CallError) -> Self {
        Self::For(error)
    }
}

/// Whether the worker did not accept the caller's certificate: without a session it looks at that last of all, when the caller's handshake is
/// complete. Nothing that came was looked at.
pub(super) fn is_turned_down(error: &BodyError) -> bool {
    /// RFC 9001 section 4.8: TLS alerts as errors of QUIC.
    const ALERTS: u64 = 0x100;
    let BodyError::Stream(ReadError::ConnectionLost(ConnectionError::ConnectionClosed(close))) = error else {
        return false;
    };
    let alert = u64::from(close.error_code).checked_sub(ALERTS).and_then(|alert| u8::try_from(alert).ok());
    alert.is_some_and(is_of_certificates)
}
