//! Logins of the administrator over every protocol, with one count of wrong ones for each source.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nearpath_types::log_limiter::LogLimiter;
use nearpath_types::{Reason, SourceNetwork};

use crate::credentials::AdminCredentials;
use crate::login_limit::LoginLimiter;

/// Checks logins. The API and the device protocols share one, so that a source gets no further
/// guesses by another protocol.
#[derive(Debug)]
pub struct AdminLogins {
    credentials: Option<AdminCredentials>,
    limiter: Mutex<LoginLimiter>,
    /// Limits the log lines about refused logins.
    lines: Mutex<LogLimiter<Option<SourceNetwork>>>,
}

/// The cause for which a login is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoginRefusal {
    /// The name or the password is wrong.
    WrongPassword,
    /// The source is locked out for this time; the password was not checked.
    LockedOut(Duration),
}

impl LoginRefusal {
    /// The reason in responses and log lines.
    pub fn reason(self) -> Reason {
        match self {
            Self::WrongPassword => Reason::Unauthorized,
            Self::LockedOut(_) => Reason::LoginLocked,
        }
    }
}

impl AdminLogins {
    /// Without credentials every login is wrong.
    pub fn new(credentials: Option<AdminCredentials>) -> Self {
        Self {
            credentials,
            limiter: Mutex::default(),
            lines: Mutex::default(),
        }
    }

    /// The credentials; `None` when the API requires none.
    pub(crate) fn credentials(&self) -> Option<&AdminCredentials> {
        self.credentials.as_ref()
    }

    /// Checks a login, counts it for its source, and logs a refusal.
    ///
    /// # Errors
    /// The cause of the refusal.
    pub fn check(
        &self,
        source: SourceNetwork,
        user: &[u8],
        password: &[u8],
    ) -> Result<(), LoginRefusal> {
        let known = self.credentials.as_ref();
        let is_right = known.is_some_and(|known| known.matches(user, password));
        self.count(Some(source), is_right)
            .inspect_err(|refusal| self.log_refusal(Some(source), refusal.reason()))
    }

    /// Decides about a login whose password was compared, and counts it. Requests that no listener
    /// brought have no source and are not limited.
    pub(crate) fn count(
        &self,
        source: Option<SourceNetwork>,
        is_right: bool,
    ) -> Result<(), LoginRefusal> {
        let now = Instant::now();
        if let Some(source) = source {
            let mut limiter = lock(&self.limiter);
            if let Some(rest) = limiter.remaining_lockout(source, now) {
                return Err(LoginRefusal::LockedOut(rest));
            }
            limiter.note_login(source, is_right, now);
        }
        match is_right {
            true => Ok(()),
            false => Err(LoginRefusal::WrongPassword),
        }
    }

    /// Logs refused requests without a right login. Anybody can cause them: a line a minute for each
    /// source.
    pub(crate) fn log_refusal(&self, source: Option<SourceNetwork>, reason: Reason) {
        let due = lock(&self.lines).take_due(source, Instant::now());
        let source = source.map_or_else(|| "unknown".to_owned(), |source| source.to_string());
        if let Some(suppressed) = due {
            tracing::warn!(source, %reason, suppressed, "controller: requests without a login refused");
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
