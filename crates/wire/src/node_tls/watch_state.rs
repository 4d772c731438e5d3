//! Decisions of the watcher: which contents to take, and what to log. Without files and clock.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::expiry::ExpiryWarnings;
use super::{CERTIFICATE_FILE, NodeCredentials, NodeCredentialsError, NodeFiles};

/// Result of reading the files once.
pub(super) type FilesRead = Result<NodeFiles, NodeCredentialsError>;

/// Files of the running node, and the last fault of newer ones.
#[derive(Debug)]
pub(super) struct WatchState {
    folder: PathBuf,
    current: NodeFiles,
    credentials: NodeCredentials,
    fault: Option<FileFault>,
    /// A fault was logged, so its end is logged too.
    awaits_recovery: bool,
    expiry: ExpiryWarnings,
}

/// Contents that cannot be used.
#[derive(Debug)]
struct FileFault {
    read: FilesRead,
    is_logged: bool,
}

/// Something for the log, or new credentials.
#[derive(Debug)]
pub(super) enum WatchEvent {
    /// The files changed, and they fit together.
    Renewed(Box<NodeCredentials>),
    /// The files cannot be used.
    Faulty(NodeCredentialsError),
    /// The files can be used again after a logged fault.
    Recovered,
    /// The certificate ends soon or has ended.
    Expiring {
        /// End of the certificate.
        not_after: SystemTime,
    },
}

impl WatchState {
    pub(super) fn new(folder: &Path, current: NodeFiles, credentials: NodeCredentials) -> Self {
        Self {
            folder: folder.to_owned(),
            current,
            credentials,
            fault: None,
            awaits_recovery: false,
            expiry: ExpiryWarnings::default(),
        }
    }

    /// Decides about files that were read at this time.
    pub(super) fn observe(&mut self, read: FilesRead, now: SystemTime) -> Vec<WatchEvent> {
        let mut events = Vec::new();
        match self.check_files(read, now) {
            Ok(renewed) => {
                self.fault = None;
                if std::mem::take(&mut self.awaits_recovery) {
                    events.push(WatchEvent::Recovered);
                }
                events
                    .extend(renewed.map(|credentials| WatchEvent::Renewed(Box::new(credentials))));
            }
            Err((read, error)) => events.extend(self.note_fault(read, error)),
        }
        let not_after = self.credentials.validity().1;
        if self.expiry.is_due(self.credentials.validity(), now) {
            events.push(WatchEvent::Expiring { not_after });
        }
        events
    }

    /// Checks files and takes them. `None`: they are the current ones.
    fn check_files(
        &mut self,
        read: FilesRead,
        now: SystemTime,
    ) -> Result<Option<NodeCredentials>, (FilesRead, NodeCredentialsError)> {
        let files = read.map_err(|error| (Err(error.clone()), error))?;
        if files == self.current {
            return Ok(None);
        }
        let checked = NodeCredentials::from_files(&self.folder, &files, now);
        match checked.and_then(|credentials| self.check_identity(credentials)) {
            Ok(credentials) => {
                (self.current, self.credentials) = (files, credentials.clone());
                self.expiry = ExpiryWarnings::default();
                Ok(Some(credentials))
            }
            Err(error) => Err((Ok(files), error)),
        }
    }

    /// Other nodes know this process by its identity, so it stays the same.
    fn check_identity(
        &self,
        credentials: NodeCredentials,
    ) -> Result<NodeCredentials, NodeCredentialsError> {
        match credentials.id() == self.credentials.id() {
            true => Ok(credentials),
            false => Err(NodeCredentialsError::OtherNode {
                path: self.folder.join(CERTIFICATE_FILE),
                actual: credentials.id().clone(),
                expected: self.credentials.id().clone(),
            }),
        }
    }

    /// Reports a fault that was read twice: the first time, somebody may be copying the files.
    fn note_fault(&mut self, read: FilesRead, error: NodeCredentialsError) -> Option<WatchEvent> {
        let known = self.fault.take().filter(|fault| fault.read == read);
        let is_due = known.as_ref().is_some_and(|fault| !fault.is_logged);
        self.fault = Some(FileFault {
            read,
            is_logged: known.is_some(),
        });
        self.awaits_recovery |= is_due;
        is_due.then_some(WatchEvent::Faulty(error))
    }
}
