//! Polls of a folder: scan, decision, reading. Blocks.

use crate::change_detector::ChangeDetector;
use crate::digest::DigestCache;
use crate::reader::{FolderReading, SourceLocation, read_folder, stack_candidates};
use crate::scan::{FolderScan, WatchedPaths};

/// State between polls.
#[derive(Debug)]
pub(crate) struct SourcePoller {
    location: SourceLocation,
    /// Files that the last reading used; stack files may have come since.
    watched: WatchedPaths,
    digests: DigestCache,
    detector: ChangeDetector<FolderScan>,
}

impl SourcePoller {
    /// Reads once, to learn which files are in use.
    pub(crate) fn new(location: SourceLocation) -> Self {
        let mut digests = DigestCache::default();
        let watched = read_folder(&location, &mut digests).watched;
        Self {
            location,
            watched,
            digests,
            detector: ChangeDetector::new(),
        }
    }

    /// Looks at the folder. Returns a reading if it has changed and is still.
    pub(crate) fn poll(&mut self) -> Option<FolderReading> {
        let seen = self.scan();
        if !self.detector.observe(seen) {
            return None;
        }
        let reading = read_folder(&self.location, &mut self.digests);
        self.watched = reading.watched.clone();
        let seen = self.scan();
        self.detector.accept_reading(seen).then_some(reading)
    }

    /// Makes the next poll read again, although nothing changes.
    pub(crate) fn retry_reading(&mut self) {
        self.detector.retry_reading();
    }

    fn scan(&self) -> FolderScan {
        let mut watched = self.watched.clone();
        // A folder that cannot be listed has none, and the reading says so.
        let candidates = stack_candidates(&self.location.folder);
        watched.files.extend(candidates.unwrap_or_default());
        FolderScan::of_paths(&watched)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    const STACK: &str = "functions:\n  one: {handler: ./one, fprocess: cat}\n";

    fn new_source(folder: &Path) -> SourcePoller {
        fs::create_dir(folder.join("one")).unwrap();
        fs::write(folder.join("nodes.yml"), "nodes:\n  a: {address: x}\n").unwrap();
        fs::write(folder.join("stack.yml"), STACK).unwrap();
        SourcePoller::new(SourceLocation {
            node: "a".parse().unwrap(),
            folder: folder.to_owned(),
            secrets: folder.join("secrets"),
        })
    }

    /// Names of the functions that a poll returns.
    fn poll_names(poller: &mut SourcePoller) -> Option<Vec<String>> {
        let state = poller.poll()?.state.unwrap();
        let names = state.functions.keys();
        Some(names.map(|id| id.name.to_string()).collect())
    }

    #[test]
    fn a_folder_is_read_when_two_polls_see_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let mut poller = new_source(folder.path());
        assert_eq!(poll_names(&mut poller), None);
        assert_eq!(poll_names(&mut poller), Some(vec!["one".to_owned()]));
        assert_eq!(poll_names(&mut poller), None, "nothing changed");
    }

    #[test]
    fn a_file_that_grows_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let mut poller = new_source(folder.path());
        while poll_names(&mut poller).is_none() {}
        let file = folder.path().join("more.yml");
        for part in ["functions:\n", "functions:\n  two: {handler: ./one,"] {
            fs::write(&file, part).unwrap();
            assert!(poller.poll().is_none());
        }
        fs::write(&file, STACK.replace("one:", "two:")).unwrap();
        assert_eq!(poll_names(&mut poller), None);
        let both = vec!["one".to_owned(), "two".to_owned()];
        assert_eq!(poll_names(&mut poller), Some(both));
    }

    #[test]
    fn a_folder_that_becomes_used_is_watched_before_it_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let mut poller = new_source(folder.path());
        while poll_names(&mut poller).is_none() {}
        fs::create_dir(folder.path().join("two")).unwrap();
        let both = format!("{STACK}  two: {{handler: ./two, fprocess: cat}}\n");
        fs::write(folder.path().join("stack.yml"), both).unwrap();
        assert_eq!(poll_names(&mut poller), None);
        assert_eq!(poll_names(&mut poller), None, "no poll has seen its files");
        fs::write(folder.path().join("two/file"), "").unwrap();
        assert_eq!(poll_names(&mut poller), None, "a file came");
        assert!(poll_names(&mut poller).is_some());
    }

    #[test]
    fn a_reading_can_be_repeated() {
        let folder = tempfile::tempdir().unwrap();
        let mut poller = new_source(folder.path());
        while poll_names(&mut poller).is_none() {}
        poller.retry_reading();
        assert!(poll_names(&mut poller).is_some());
    }
}
