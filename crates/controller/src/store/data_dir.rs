//! Exclusive use of a data directory.

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::DATABASE_FILE;
use super::error::StoreOpenError;

/// Mode of the directory, and the part of a mode that is for other users.
const PRIVATE_MODE: u32 = 0o700;
const OTHERS_MODE: u32 = 0o077;
const WORLD_WRITABLE_MODE: u32 = 0o002;
const STICKY_MODE: u32 = 0o1000;
const LOCK_NAME: &str = "lock";
/// Length above which a file is no lock: a process id has ten digits at most.
const MAX_LOCK_BYTES: u64 = 16;

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
    /// Claims `path`. A missing directory is created for its owner only, and one that other users
    /// can enter is closed to them.
    ///
    /// # Errors
    /// [`StoreOpenError::ForeignFolder`] when it belongs to another user, and
    /// [`StoreOpenError::ExposedFolder`] when it cannot be closed without harm to others.
    /// When another process has claimed it ([`StoreOpenError::InUse`] names it) or it cannot be
    /// used.
    pub fn claim(path: impl Into<PathBuf>) -> Result<Self, StoreOpenError> {
        let path = path.into();
        create_folder(&path)?;
        let lock = lock_folder(&path)?;
        Ok(Self { path, lock })
    }

    /// Path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Creates the folder for its owner only. An existing one that others can enter is closed to them:
/// below it are secrets, code, and sockets to the chains' memory.
fn create_folder(folder: &Path) -> Result<(), StoreOpenError> {
    let to_error = |source| StoreOpenError::UnusableFolder {
        path: folder.to_owned(),
        source,
    };
    let mut builder = DirBuilder::new();
    let created = builder.recursive(true).mode(PRIVATE_MODE).create(folder);
    let metadata = created.and_then(|()| folder.metadata()).map_err(to_error)?;
    // Whoever owns the folder can open it again, and replace what is in it.
    if !is_own(&metadata) {
        return Err(StoreOpenError::ForeignFolder {
            path: folder.to_owned(),
            owner: metadata.uid(),
        });
    }
    let mode = metadata.permissions().mode() & 0o7777;
    if mode & OTHERS_MODE == 0 {
        return Ok(());
    }
    // A folder with other files may be a user's home or `/tmp`, whose mode others rely on.
    if !is_data_dir(folder, mode).map_err(to_error)? {
        return Err(StoreOpenError::ExposedFolder {
            path: folder.to_owned(),
            mode,
        });
    }
    fs::set_permissions(folder, Permissions::from_mode(PRIVATE_MODE)).map_err(to_error)?;
    tracing::warn!(
        path = %folder.display(),
        "data directory: mode {mode:04o} let other users enter it: changed to {PRIVATE_MODE:04o}"
    );
    Ok(())
}

/// Returns whether the folder is empty, was a data directory before or holds a copied database.
fn is_data_dir(folder: &Path, mode: u32) -> io::Result<bool> {
    // No data directory has this bit; `/tmp` and its like do, and others rely on them.
    if mode & STICKY_MODE != 0 {
        return Ok(false);
    }
    let mut entries = fs::read_dir(folder)?.collect::<io::Result<Vec<_>>>()?;
    // The root of a new ext4 volume.
    entries.retain(|entry| entry.file_name() != "lost+found");
    // Any user may have made a lock file in a folder that all can write to.
    let is_lock_proof = mode & WORLD_WRITABLE_MODE == 0;
    Ok(entries.is_empty()
        || is_own_file(&folder.join(DATABASE_FILE))
        || is_lock_proof && holds_process_id(&folder.join(LOCK_NAME)))
}

fn is_own(metadata: &Metadata) -> bool {
    metadata.uid() == geteuid().as_raw()
}

/// Returns whether a path is a regular file of this user. Does not follow links.
fn is_own_file(path: &Path) -> bool {
    path.symlink_metadata()
        .is_ok_and(|metadata| metadata.is_file() && is_own(&metadata))
}

/// Returns whether a file is a lock as [`write_process_id`] leaves it: other programs have files of
/// this name too.
fn holds_process_id(path: &Path) -> bool {
    let mut text = String::new();
    let mut read = || {
        File::open(path)?
            .take(MAX_LOCK_BYTES + 1)
            .read_to_string(&mut text)
    };
    // In this order: a FIFO would be opened for ever.
    is_own_file(path)
        && read().is_ok_and(|bytes| bytes as u64 <= MAX_LOCK_BYTES)
        && text.trim_end().parse::<u32>().is_ok()
}

/// Locks the folder. The lock file contains the owner's process id, for the error text of a second
/// process.
fn lock_folder(folder: &Path) -> Result<File, StoreOpenError> {
    let path = folder.join(LOCK_NAME);
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
