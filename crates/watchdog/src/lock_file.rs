//! Lock file: while it exists, the watchdog is healthy; deleting it makes the instance unhealthy.

use std::fs::File;
use std::io;
use std::path::PathBuf;

/// Lock file, or `None` when suppressed. Removed when dropped.
#[derive(Debug)]
pub(crate) struct LockFile(Option<PathBuf>);

impl LockFile {
    /// Creates the file.
    ///
    /// When the folder is not writable; the text names the settings that help.
    /// When the folder is not writable; the text names the settings that help.
    pub(crate) fn create(path: Option<PathBuf>) -> io::Result<Self> {
        if let Some(path) = &path {
            File::create(path).map_err(|fault| {
                // The tenant did not choose the path, so the text names the settings that change
                // it.
                let text = format!(
                    "cannot write {}: {fault} (set TMPDIR, or suppress_lock=true)",
                    path.display()
                );
                io::Error::new(fault.kind(), text)
            })?;
        }
        Ok(Self(path))
    }

    /// Returns whether the file exists, or is suppressed.
    pub(crate) fn is_present(&self) -> bool {
        self.0.as_deref().is_none_or(|path| path.exists())
    }

    /// Removes the file.
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
