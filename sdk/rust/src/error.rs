//! Errors of calls: function, path and cause.

use std::fmt;

use nearpath_domain::{CallError, UnsentReason};
use nearpath_shm::head::HeadError;
use nearpath_types::Reason;

use crate::message::Path;

/// Reason why there is no answer, or serving failed.
#[derive(Debug)]
pub struct Error {
    function: String,
    path: Option<Path>,
    kind: ErrorKind,
}

/// The kinds of errors. They are the same in every language; [`ErrorKind::code_name`] is what the others call them.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// No function can have that name, or no event that topic.
    #[error("{0}")]
    Name(String),
    /// A header field cannot be sent.
    #[error("a header field cannot be sent: {0}")]
    Head(HeadError),
    /// The call was not sent: repeating it cannot run it twice.
    #[error("not sent: {0}")]
    Unsent(String),
    /// The called instance died, or its connection broke: it may have run.
    #[error("no answer: {0}; the call may have run")]
    Died(String),
    /// The deadline passed: it may have run.
    #[error("no answer before the deadline; the call may have run")]
    Timeout,
    /// The answer, or the body that was being read, was aborted.
    #[error("broken off, or not to be understood: {0}")]
    Truncated(String),
    /// The answer is larger than is taken.
    #[error("the answer is larger than {0} bytes")]
    TooLarge(usize),
    /// The platform answered, not the function.
    #[error("the platform answered {status} {}: {text}", reason.as_deref().unwrap_or("without a reason"))]
    Platform {
        /// HTTP status.
        status: u16,
        /// A name of `contract/reasons.toml`.
        reason: Option<String>,
        /// For people.
        text: String,
    },
    /// This process cannot listen or has no event loop.
    #[error("{0}")]
    Listen(String),
}

impl ErrorKind {
    /// Converts an error of shared memory.
    pub(crate) fn from_call_error(error: CallError) -> Self {
        match error {
            CallError::Unsent(UnsentReason::BodyLost) => Self::Died(error.to_string()), // there is nothing left to send
            CallError::Unsent(why) => Self::Unsent(why.to_string()),
            CallError::PeerDied => Self::Died(error.to_string()),
            CallError::Timeout => Self::Timeout,
            CallError::Aborted => Self::Truncated(error.to_string()),
            CallError::BadAnswer(bytes) => Self::TooLarge(bytes),
        }
    }

    /// The kind's name, the same in every language.
    pub fn code_name(&self) -> &'static str {
        match self {
            Self::Name(_) => "name",
            Self::Head(_) => "head",
            Self::Unsent(_) => "unsent",
            Self::Died(_) => "died",
            Self::Timeout => "timeout",
            Self::Truncated(_) => "truncated",
            Self::TooLarge(_) => "too_large",
            Self::Platform { .. } => "platform",
            Self::Listen(_) => "listen",
        }
    }
}

impl Error {
    pub(crate) fn new(function: &str, path: Option<Path>, kind: ErrorKind) -> Self {
        Self {
            function: function.to_owned(),
            path,
            kind,
        }
    }

    /// Of a call through shared memory.
    pub(crate) fn from_call_error(function: &str, error: CallError) -> Self {
        Self::new(function, Some(Path::Shm), ErrorKind::from_call_error(error))
    }

    pub(crate) fn from_unsent(function: &str, why: UnsentReason) -> Self {
        Self::from_call_error(function, why.into())
    }

    /// The function that was called; empty when none was.
    pub fn function(&self) -> &str {
        &self.function
    }

    /// The path that the call took; none when it took none.
    pub fn path(&self) -> Option<Path> {
        self.path
    }

    /// Returns the cause.
    pub fn kind(&self) -> &ErrorKind {
        &self.kind
    }

    /// Returns true if the call provably did not run: repeating it cannot run it twice.
    pub fn retry_is_safe(&self) -> bool {
        match &self.kind {
            ErrorKind::Unsent(_) => true,
            ErrorKind::Platform {
                reason: Some(reason),
                ..
            } => Reason::ALL
                .iter()
                .any(|known| known.name() == reason && known.retry_is_safe()),
            _ => false,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.function.as_str(), self.path) {
            ("", _) => write!(f, "nearpath: {}", self.kind),
            (function, None) => write!(f, "nearpath: {function}: {}", self.kind),
            (function, Some(path)) => write!(f, "nearpath: {function} over {path}: {}", self.kind),
        }
    }
}

impl std::error::Error for Error {}
