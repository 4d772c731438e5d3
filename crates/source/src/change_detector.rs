//! Decision when a changed folder is read and applied. Pure.

/// Compares what successive polls of a folder saw. `S` describes all files in use.
#[derive(Debug)]
pub(crate) struct ChangeDetector<S> {
    last_seen: Option<S>,
    /// State of the files at the last complete reading.
    last_read: Option<S>,
}

impl<S: PartialEq> ChangeDetector<S> {
    /// Returns a detector that has seen nothing.
    pub(crate) fn new() -> Self {
        Self {
            last_seen: None,
            last_read: None,
        }
    }

    /// Takes what a poll saw. Returns whether to read the folder: it differs from the last reading,
    /// and was the same at the poll before, so that no copying is under way.
    pub(crate) fn observe(&mut self, seen: S) -> bool {
        let is_still = self.last_seen.as_ref() == Some(&seen);
        let is_new = self.last_read.as_ref() != Some(&seen);
        self.last_seen = Some(seen);
        is_still && is_new
    }

    /// Takes what there is after a reading. Returns whether the reading may be used: nothing changed
    /// while it was made, and it used no file that no poll has seen.
    pub(crate) fn accept_reading(&mut self, seen: S) -> bool
    where
        S: Clone,
    {
        let is_complete = self.last_seen.as_ref() == Some(&seen);
        self.last_read = is_complete.then(|| seen.clone());
        self.last_seen = Some(seen);
        is_complete
    }

    /// Makes the next poll read again, although nothing changes.
    pub(crate) fn retry_reading(&mut self) {
        self.last_read = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_change_is_read_once_and_when_it_is_still() {
        let mut detector = ChangeDetector::new();
        let reads = [1, 1, 1, 2, 3, 3, 3].map(|seen| {
            let reads = detector.observe(seen);
            reads && detector.accept_reading(seen)
        });
        assert_eq!(reads, [false, true, false, false, false, true, false]);
    }

    #[test]
    fn a_change_during_a_reading_is_not_used() {
        let mut detector = ChangeDetector::new();
        detector.observe(1);
        assert!(detector.observe(1));
        assert!(!detector.accept_reading(2));
        assert!(detector.observe(2), "still since the reading");
        assert!(detector.accept_reading(2));
        assert!(!detector.observe(2));
    }

    #[test]
    fn a_reading_can_be_repeated() {
        let mut detector = ChangeDetector::new();
        detector.observe(1);
        assert!(detector.observe(1) && detector.accept_reading(1));
        detector.retry_reading();
        assert!(detector.observe(1));
    }

    proptest! {
        #[test]
        fn a_folder_that_stays_the_same_is_read_in_the_end(seen in prop::collection::vec(0u8..4, 0..20), last in 0u8..4) {
            let mut detector = ChangeDetector::new();
            let mut read = None;
            for seen in seen.into_iter().chain([last, last]) {
                if detector.observe(seen) && detector.accept_reading(seen) {
                    read = Some(seen);
                }
            }
            prop_assert_eq!(read, Some(last));
        }
    }
}
