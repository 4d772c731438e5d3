//! Bounds of what a thread's transfers keep in files, with a share for each source.

use std::collections::HashMap;

use nearpath_types::SourceNetwork;

/// Bounds of one thread; the default permits nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SpoolLimits {
    /// Bytes of all transfers; a source has half of them.
    pub(crate) max_bytes: u64,
    /// Files of all transfers; a source has half of them.
    pub(crate) max_files: u64,
    /// Bytes of one transfer.
    pub(crate) max_transfer_bytes: u64,
}

impl SpoolLimits {
    /// Returns the limits of one of `threads` threads in a process with `descriptors`.
    pub(crate) fn for_thread(threads: usize, descriptors: u64) -> Self {
        Self {
            // These are promises to operators (decision 73).
            max_bytes: 1 << 30,
            // A file may be as small as one frame, and connections need descriptors too.
            max_files: (descriptors / 8 / threads.max(1) as u64).min(4096),
            max_transfer_bytes: 64 << 20,
        }
    }
}

/// Bytes and files in use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct SpoolUsage {
    bytes: u64,
    files: u64,
}

/// Usage of files by the transfers of a thread. A bound may be exceeded by one frame: its size is
/// known only when it has come.
#[derive(Debug)]
pub(super) struct SpoolBudget {
    limits: SpoolLimits,
    total: SpoolUsage,
    /// A source is here, and has bytes, only while it has a file.
    by_source: HashMap<SourceNetwork, SpoolUsage>,
}

impl SpoolBudget {
    /// Creates a budget of which nothing is used.
    pub(super) fn new(limits: SpoolLimits) -> Self {
        Self {
            limits,
            total: SpoolUsage::default(),
            by_source: HashMap::new(),
        }
    }

    /// Returns the bytes in use.
    #[cfg(test)]
    pub(super) fn used_bytes(&self) -> u64 {
        self.total.bytes
    }

    /// Returns whether a source may begin a file.
    pub(super) fn can_begin(&self, source: SourceNetwork) -> bool {
        let (own, limits) = (self.usage_of(source), self.limits);
        self.total.files < limits.max_files
            && own.files < limits.max_files / 2
            && self.can_add(source, 0)
    }

    /// Returns whether a transfer with `transfer_bytes` in its file may add a frame.
    pub(super) fn can_add(&self, source: SourceNetwork, transfer_bytes: u64) -> bool {
        let (own, limits) = (self.usage_of(source), self.limits);
        self.total.bytes < limits.max_bytes
            && own.bytes < limits.max_bytes / 2
            && transfer_bytes < limits.max_transfer_bytes
    }

    /// Counts a new file.
    pub(super) fn begin_file(&mut self, source: SourceNetwork) {
        self.total.files += 1;
        self.by_source.entry(source).or_default().files += 1;
    }

    /// Counts bytes that go to a file.
    pub(super) fn add_bytes(&mut self, source: SourceNetwork, bytes: u64) {
        self.total.bytes += bytes;
        self.by_source.entry(source).or_default().bytes += bytes;
    }

    /// Counts bytes that a file has no more.
    pub(super) fn remove_bytes(&mut self, source: SourceNetwork, bytes: u64) {
        self.total.bytes -= bytes;
        if let Some(own) = self.by_source.get_mut(&source) {
            own.bytes -= bytes;
        }
    }

    /// Counts the end of a file and of the bytes in it.
    pub(super) fn end_file(&mut self, source: SourceNetwork, bytes: u64) {
        self.remove_bytes(source, bytes);
        self.total.files -= 1;
        if let Some(own) = self.by_source.get_mut(&source) {
            own.files -= 1;
            if own.files == 0 {
                self.by_source.remove(&source);
            }
        }
    }

    fn usage_of(&self, source: SourceNetwork) -> SpoolUsage {
        self.by_source.get(&source).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMITS: SpoolLimits = SpoolLimits {
        max_bytes: 1000,
        max_files: 8,
        max_transfer_bytes: 300,
    };

    fn source(host: u8) -> SourceNetwork {
        SourceNetwork::of([192, 0, 2, host].into())
    }

    #[test]
    fn one_source_has_half_of_the_bytes_and_of_the_files() {
        let mut budget = SpoolBudget::new(LIMITS);
        for _ in 0..4 {
            assert!(budget.can_begin(source(1)));
            budget.begin_file(source(1));
        }
        assert!(!budget.can_begin(source(1)) && budget.can_begin(source(2)));
        assert!(budget.can_add(source(1), 299) && !budget.can_add(source(1), 300));
        budget.add_bytes(source(1), 500);
        assert!(!budget.can_add(source(1), 0) && budget.can_add(source(2), 0));
        budget.begin_file(source(2));
        budget.add_bytes(source(2), 400);
        budget.begin_file(source(3));
        budget.add_bytes(source(3), 100);
        assert!(!budget.can_begin(source(4)), "all bytes are in use");
        budget.remove_bytes(source(1), 1);
        assert!(budget.can_begin(source(4)) && budget.can_add(source(1), 0));
    }

    #[test]
    fn files_are_an_eighth_of_the_descriptors_at_most() {
        assert_eq!(SpoolLimits::for_thread(4, 1024).max_files, 32);
        assert_eq!(SpoolLimits::for_thread(4, u64::MAX).max_files, 4096);
    }

    proptest! {
        #[test]
        fn all_bytes_and_files_come_back(
            steps in proptest::collection::vec((0u8..4, 0u8..4, 0u64..200), 0..100),
        ) {
            let mut budget = SpoolBudget::new(LIMITS);
            let mut files: Vec<(SourceNetwork, u64)> = Vec::new();
            for (step, host, bytes) in steps {
                match (step, files.len()) {
                    (0, _) if budget.can_begin(source(host)) => {
                        budget.begin_file(source(host));
                        files.push((source(host), 0));
                    }
                    (1, 1..) => {
                        let at = usize::from(host) % files.len();
                        let (source, used) = &mut files[at];
                        if budget.can_add(*source, *used) {
                            budget.add_bytes(*source, bytes);
                            *used += bytes;
                        }
                    }
                    (2, 1..) => {
                        let at = usize::from(host) % files.len();
                        let (source, used) = &mut files[at];
                        let freed = bytes.min(*used);
                        budget.remove_bytes(*source, freed);
                        *used -= freed;
                    }
                    (3, 1..) => {
                        let (source, used) = files.swap_remove(usize::from(host) % files.len());
                        budget.end_file(source, used);
                    }
                    _ => {}
                }
                // A bound may be exceeded by one frame.
                prop_assert!(budget.used_bytes() < LIMITS.max_bytes + 200);
                prop_assert!(files.len() <= 8);
                let used: u64 = files.iter().map(|(_, used)| used).sum();
                prop_assert_eq!(budget.used_bytes(), used);
            }
            for (source, used) in files {
                budget.end_file(source, used);
            }
            prop_assert_eq!(budget.total, SpoolUsage::default());
            prop_assert!(budget.by_source.is_empty());
        }
    }
}
