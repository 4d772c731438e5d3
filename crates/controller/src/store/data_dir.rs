//! One process a data directory.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::error::StoreOpenError;

/// A data directory that belongs to this process for as long as the value lives. The kernel lets go of it when the
/// process dies, however it dies.
///
/// Whatever else works in the directory, or cleans up after a predecessor, has to do so under the claim: else a second
/// process would sweep the first one's instances away before it learns that it is the second.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    #[allow(dead_code, reason = "held, not read")]
    lock: File,
}

impl DataDir {
    /// Claims `path`; it is created, for its owner only, when it does not exist.
    ///
    /// # Errors
    /// When another process holds it ([`StoreOpenError::InUse`] names it) or it cannot be used.
    pub fn claim(path: impl Into<PathBuf>) -> Result<Self, StoreOpenError> {
        let path = path.into();
        create_folder(&path).map_err(|source| StoreOpenError::UnusableFolder {
            path: path.clone(),
            source,
        })?;
        let lock = lock_folder(&path)?;
        Ok(Self { path, lock })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// One that exists keeps its mode: it may be somebody's home.
fn create_folder(folder: &Path) -> io::Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)?;
    let mode = folder.metadata()?.permissions().mode();
    if mode & 0o022 != 0 {
        tracing::warn!(path = %folder.display(), "others may write to the data directory: chmod 700 it");
    }
    Ok(())
}

/// The locked file holds the owner's process id, for the error text of whoever comes second.
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

/// Writes the process id down. On a full disk the lock holds without it.
fn write_process_id(file: &mut File) {
    let written = file
        .set_len(0)
        .and_then(|()| file.rewind())
        .and_then(|()| writeln!(file, "{}", std::process::id()));
    if let Err(error) = written {
        tracing::warn!(%error, "cannot write the process id into the lock file");
    }
}
