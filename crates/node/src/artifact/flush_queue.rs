//! Flushes of new copies to disk, which share calls.
//!
//! A flush takes the disk some milliseconds, and one call flushes the whole file system. So one thread
//! flushes all copies that wait, however many functions are deployed at once.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// Wait before a flush, for the copies of further deployments: they often come one after the other.
const FLUSH_DELAY: Duration = Duration::from_millis(100);

/// Marks of copies that are not flushed; `None`: no thread flushes.
#[derive(Debug, Default)]
pub(super) struct FlushQueue(Mutex<Option<Vec<PathBuf>>>);

impl FlushQueue {
    /// Adds a complete copy by its mark. Returns whether the caller must call
    /// [`FlushQueue::flush_all`], because no thread does.
    pub(super) fn push(&self, mark: PathBuf) -> bool {
        let mut marks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_idle = marks.is_none();
        marks.get_or_insert_default().push(mark);
        is_idle
    }

    /// Flushes copies in the file system of `root` until none waits, and removes their marks. Blocks.
    ///
    /// After a failure the marks stay, and the node's next start copies again.
    pub(super) fn flush_all(&self, root: &Path) {
        loop {
            thread::sleep(FLUSH_DELAY);
            let Some(marks) = self.take_waiting() else {
                return;
            };
            let flushed = flush_file_system(root).and_then(|()| remove_marks(&marks));
            if let Err(error) = flushed {
                tracing::warn!(%error, copies = marks.len(), "copies could not be flushed to disk; the next start copies again");
            }
        }
    }

    /// Takes the copies that wait. Without any, the caller no longer flushes.
    fn take_waiting(&self) -> Option<Vec<PathBuf>> {
        let mut marks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let waiting = marks.take().filter(|waiting| !waiting.is_empty());
        if waiting.is_some() {
            *marks = Some(Vec::new());
        }
        waiting
    }
}

/// Flushes a whole file system: a copy may have 100,000 files.
fn flush_file_system(folder: &Path) -> io::Result<()> {
    let folder = fs::File::open(folder)?;
    Ok(rustix::fs::syncfs(folder)?)
}

/// Removes marks, also after one that fails. One that is missing was removed with its copy.
fn remove_marks(marks: &[PathBuf]) -> io::Result<()> {
    let removed = marks.iter().map(|mark| match fs::remove_file(mark) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    });
    removed.fold(Ok(()), Result::and)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_flushes_all_that_wait() {
        let folder = tempfile::tempdir().unwrap();
        let (queue, mark) = (FlushQueue::default(), |name| folder.path().join(name));
        for (name, is_first) in [("a", true), ("b", false), ("gone", false)] {
            if name != "gone" {
                fs::write(mark(name), "").unwrap();
            }
            assert_eq!(queue.push(mark(name)), is_first);
        }
        queue.flush_all(folder.path());
        assert!(!mark("a").exists() && !mark("b").exists());
        assert!(queue.push(mark("c")), "nobody flushes any more");
    }

    #[test]
    fn marks_stay_when_the_file_system_cannot_be_flushed() {
        let folder = tempfile::tempdir().unwrap();
        let (queue, mark) = (FlushQueue::default(), folder.path().join("a"));
        fs::write(&mark, "").unwrap();
        queue.push(mark.clone());
        queue.flush_all(&folder.path().join("missing"));
        assert!(mark.exists());
    }
}
