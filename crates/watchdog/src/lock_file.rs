//! The lock file: while it exists, the watchdog counts as healthy; who deletes it makes the instance unhealthy.

use std::fs::File;
use std::io;
use std::path::PathBuf;

/// The file, or nothing when it was suppressed. Removed when dropped.
#[derive(Debug)]
pub(crate) struct LockFile(Option<PathBuf>);

impl LockFile {
    /// Makes the file.
    ///
    /// # Errors
    /// When the folder cannot be written to; the text says how to do without.
    pub(crate) fn create(path: Option<PathBuf>) -> io::Result<Self> {
        if let Some(path) = &path {
            File::create(path).map_err(|fault| {
                let text = format!(
                    "cannot write {}: {fault} (set TMPDIR, or suppress_lock=true)",
                    path.display()
                );
                io::Error::new(fault.kind(), text)
            })?;
        }
        Ok(Self(path))
    }

    /// Whether the file is still there, or was never wanted.
    pub(crate) fn is_present(&self) -> bool {
        self.0.as_deref().is_none_or(|path| path.exists())
    }

    /// Takes the file away.
    pub(crate) fn remove(&self) {
        if let Some(path) = &self.0 {
            let _ = std::fs::remove_file(path); // already gone is as good
        }
    }
}

impl Drop for LockFile {
    fn drop(&mut self) {
        self.remove();
    }
}
