//! Exclusive use of a data directory.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::error::StoreOpenError;

/// A data directory that belongs to this process while the value lives. The kernel releases the
/// lock when the process dies, however it dies.
///
/// Everything else that uses the directory, or cleans up after a predecessor, must hold the claim.
/// Else a second process would remove the first one's instances before it learns that it is the
/// second.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    #[allow(dead_code, reason = "holds the lock")]
    lock: File,
}

impl DataDir {
    /// Claims `path`. A missing directory is created for its owner only.
    ///
    /// # Errors
    /// When another process has claimed it ([`StoreOpenError::InUse`] names it) or it cannot be
    /// used.
    pub fn claim(path: impl Into<PathBuf>) -> Result<Self, StoreOpenError> {
        let path = path.into();
        create_folder(&path).map_err(|source| StoreOpenError::UnusableFolder {
            path: path.clone(),
            source,
        })?;
        let lock = lock_folder(&path)?;
        Ok(Self { path, lock })
    }

    /// Path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Creates the folder. An existing one keeps its mode: it may be a user's home directory.
fn create_folder(folder: &Path) -> io::Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)?;
    let mode = folder.metadata()?.permissions().mode();
    if mode & 0o022 != 0 {
        // A warning, not an error: shared group folders are a choice of the operator.
        tracing::warn!(path = %folder.display(), "data directory: writable by others, run chmod 700");
    }
    Ok(())
}

/// Locks the folder. The lock file contains the owner's process id, for the error text of a second
/// process.
fn lock_folder(folder: &Path) -> Result<File, StoreOpenError> {
    let path = folder.join("lock");
    let to_error = |source| StoreOpenError::UnusableFolder {
        path: path.clone(),
        source,
    };
    let mut options = OpenOptions::new();
    let mut file = options
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .map_err(to_error)?;
    // flock(2) belongs to the open file, so a crash releases it; a pid file alone would stay
    // behind.
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => {
            return Err(StoreOpenError::InUse {
                path: folder.to_owned(),
                pid: read_owner(&mut file),
            });
        }
        Err(error) => return Err(to_error(error.into())),
    }
    write_process_id(&mut file);
    Ok(file)
}

fn read_owner(file: &mut File) -> String {
    let mut text = String::new();
    match file.read_to_string(&mut text).is_ok() && !text.trim().is_empty() {
        true => text.trim().to_owned(),
        false => "(unknown)".to_owned(),
    }
}

/// Writes the process id. On a full disk the lock holds without it.
fn write_process_id(file: &mut File) {
    let written = file
        .set_len(0)
        .and_then(|()| file.rewind())
        .and_then(|()| writeln!(file, "{}", std::process::id()));
    if let Err(error) = written {
        tracing::warn!(%error, "data directory: cannot write the process id into the lock file");
    }
}
