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
        match self.check_files(&read, now) {
            Ok(renewed) => {
                self.fault = None;
                if std::mem::take(&mut self.awaits_recovery) {
                    events.push(WatchEvent::Recovered);
                }
                events
                    .extend(renewed.map(|credentials| WatchEvent::Renewed(Box::new(credentials))));
            }
            Err(error) => events.extend(self.note_fault(read, error)),
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
        read: &FilesRead,
        now: SystemTime,
    ) -> Result<Option<NodeCredentials>, NodeCredentialsError> {
        let files = read.as_ref().map_err(Clone::clone)?;
        if *files == self.current {
            return Ok(None);
        }
        let checked = NodeCredentials::from_files(&self.folder, files, now)?;
        let credentials = self.check_identity(checked)?;
        (self.current, self.credentials) = (files.clone(), credentials.clone());
        self.expiry = ExpiryWarnings::default();
        Ok(Some(credentials))
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
                actual: Box::new(credentials.id().clone()),
                expected: Box::new(self.credentials.id().clone()),
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use nearpath_ca::AuthorityFiles;

    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 3600);

    /// An authority, and a node of it that runs.
    struct Fixture {
        authority: AuthorityFiles,
        state: WatchState,
        now: SystemTime,
        _dir: tempfile::TempDir,
    }

    impl Fixture {
        fn new() -> Self {
            let (dir, now) = (tempfile::tempdir().unwrap(), SystemTime::now());
            let authority = AuthorityFiles::init(dir.path(), "shop", now, 99 * DAY).unwrap();
            let (folder, first) = (Path::new("/n"), issue(&authority, now, 30 * DAY));
            let credentials = NodeCredentials::from_files(folder, &first, now).unwrap();
            let state = WatchState::new(folder, first, credentials);
            Self {
                authority,
                state,
                now,
                _dir: dir,
            }
        }

        fn observe(&mut self, read: &FilesRead) -> Vec<&'static str> {
            let events = self.state.observe(read.clone(), self.now);
            let name = |event: &WatchEvent| match event {
                WatchEvent::Renewed(_) => "renewed",
                WatchEvent::Faulty(_) => "faulty",
                WatchEvent::Recovered => "recovered",
                WatchEvent::Expiring { .. } => "expiring",
            };
            events.iter().map(name).collect()
        }
    }

    fn issue(authority: &AuthorityFiles, now: SystemTime, life: Duration) -> NodeFiles {
        let issued = authority.issue(&"a".parse().unwrap(), now, life).unwrap();
        let files = issued.files();
        NodeFiles {
            certificate: files.certificate.clone(),
            key: files.key.clone(),
            roots: files.roots.clone(),
        }
    }

    fn without_key(files: &NodeFiles) -> FilesRead {
        Ok(NodeFiles {
            key: Vec::new(),
            ..files.clone()
        })
    }

    #[test]
    fn a_fault_counts_when_it_stays_and_its_end_is_reported_once() {
        let mut fixture = Fixture::new();
        let good = Ok(fixture.state.current.clone());
        let bad = without_key(&fixture.state.current);
        assert!(fixture.observe(&good).is_empty());
        assert!(fixture.observe(&bad).is_empty(), "a copy may be under way");
        assert!(fixture.observe(&good).is_empty(), "it was");
        assert!(fixture.observe(&bad).is_empty());
        assert_eq!(fixture.observe(&bad), ["faulty"]);
        assert!(fixture.observe(&bad).is_empty(), "once");
        let missing = Err(NodeCredentialsError::File {
            path: "/n/node.crt".into(),
            why: "gone".to_owned(),
        });
        assert!(fixture.observe(&missing).is_empty());
        assert_eq!(fixture.observe(&good), ["recovered"]);
        assert!(fixture.observe(&good).is_empty());
    }

    #[test]
    fn good_files_are_taken_at_once_and_end_warnings_of_the_old_ones() {
        let mut fixture = Fixture::new();
        let old = Ok(fixture.state.current.clone());
        fixture.now += 29 * DAY;
        assert_eq!(fixture.observe(&old), ["expiring"]);
        let next = Ok(issue(&fixture.authority, fixture.now, 30 * DAY));
        assert_eq!(fixture.observe(&next), ["renewed"]);
        fixture.now += 2 * DAY;
        assert!(fixture.observe(&next).is_empty());
        let bad = without_key(next.as_ref().unwrap());
        fixture.observe(&bad);
        fixture.observe(&bad);
        let later = Ok(issue(&fixture.authority, fixture.now, 30 * DAY));
        assert_eq!(fixture.observe(&later), ["recovered", "renewed"]);
    }

    #[test]
    fn a_certificate_of_the_future_is_taken_when_its_time_comes() {
        let mut fixture = Fixture::new();
        let start = fixture.now + DAY;
        let next = Ok(issue(&fixture.authority, start, 30 * DAY));
        fixture.observe(&next);
        assert_eq!(fixture.observe(&next), ["faulty"]);
        fixture.now = start;
        assert_eq!(fixture.observe(&next), ["recovered", "renewed"]);
    }
}
