//! Counter of the instance's processes that the kernel has killed for lack of memory.
//!
//! The sandbox has no cgroup file system, so the node passes the open file in
//! `NEARPATH_OOM_KILL_FD`: `memory.events` (v2) or `memory.oom_control` (v1). Both have a line
//! `oom_kill N`.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Maximum bytes of the file; it has six short lines.
const MAX_FILE_BYTES: usize = 1024;

/// The counter; see the module documentation. Empty where the kernel does not count. Clones share
/// it.
#[derive(Debug, Clone, Default)]
pub(crate) struct OomCounter(Option<Arc<File>>);

impl OomCounter {
    pub(crate) fn new(file: Option<File>) -> Self {
        Self(file.map(Arc::new))
    }

    /// Returns the kills so far; `None` where they are not counted.
    pub(crate) fn read_kills(&self) -> Option<u64> {
        let mut text = [0; MAX_FILE_BYTES];
        // At an offset, because the kernel writes the text anew for a read at 0.
        let bytes = self.0.as_ref()?.read_at(&mut text, 0).ok()?;
        parse_kills(&String::from_utf8_lossy(&text[..bytes]))
    }

    /// Returns whether the kernel has killed a process since `before` was read.
    pub(crate) fn has_grown(&self, before: Option<u64>) -> bool {
        // Both known: a counter that cannot be read proves nothing.
        matches!((self.read_kills(), before), (Some(now), Some(before)) if now > before)
    }
}

fn parse_kills(text: &str) -> Option<u64> {
    let number = |line: &str| line.strip_prefix("oom_kill ")?.parse().ok();
    text.lines().find_map(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_of_the_file_are_read() {
        let v1 = "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n";
        let v2 = "low 0\nhigh 0\nmax 7\noom 2\noom_kill 2\noom_group_kill 0\n";
        assert_eq!((parse_kills(v1), parse_kills(v2)), (Some(3), Some(2)));
        assert_eq!(parse_kills("oom_kill_disable 0\nunder_oom 0\n"), None);
    }

    #[test]
    fn only_a_known_growth_counts() {
        let (file, path) = tempfile::NamedTempFile::new().unwrap().into_parts();
        std::fs::write(&path, "oom_kill 1\n").unwrap();
        let counter = OomCounter::new(Some(file));
        assert_eq!(counter.read_kills(), Some(1));
        assert!(!counter.has_grown(Some(1)));
        std::fs::write(&path, "oom_kill 2\n").unwrap();
        assert!(counter.has_grown(Some(1)));
        assert!(!counter.has_grown(None) && !OomCounter::default().has_grown(Some(0)));
    }
}
