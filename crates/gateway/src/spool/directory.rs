//! Folder of the spool's files. Its files have no names, so none outlives its process.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use super::budget::SpoolLimits;

/// Space that the spool leaves to others: the platform keeps its state on the same disk.
const MIN_FREE_BYTES: u64 = 1 << 30;

/// Folder of the spool's files.
#[derive(Debug)]
pub(crate) struct SpoolDirectory {
    folder: OwnedFd,
    /// Limits of each thread.
    pub(super) limits: SpoolLimits,
    min_free_bytes: u64,
}

/// Number of the next file that needs a name.
static NEXT_NAME: AtomicU64 = AtomicU64::new(0);

impl SpoolDirectory {
    /// Opens the folder, creates it if needed, and removes what is in it. Blocks.
    /// `threads` share it.
    ///
    /// # Errors
    /// If files cannot be created there, or if their file system cannot free a part of a file.
    #[expect(
        clippy::disallowed_methods,
        reason = "called before the gateway serves"
    )]
    pub(crate) fn open_empty(path: &Path, threads: usize) -> io::Result<Self> {
        fs::DirBuilder::new()
            .mode(0o700)
            .recursive(true)
            .create(path)?;
        // An older folder may have been opened to others since; bodies are for its owner only.
        fs::set_permissions(path, Permissions::from_mode(0o700))?;
        // Only a crash between the creation of a file and its removal leaves one.
        for entry in fs::read_dir(path)? {
            // The old process of a handover removes its files too.
            match fs::remove_file(entry?.path()) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // The soft limit: the kernel enforces this one. `None` means unlimited.
        let descriptors = getrlimit(Resource::Nofile).current;
        let directory = Self {
            folder: rustix::fs::open(path, flags, Mode::empty())?,
            limits: SpoolLimits::for_thread(threads, descriptors.unwrap_or(u64::MAX)),
            min_free_bytes: MIN_FREE_BYTES,
        };
        directory.check_file_system()?;
        Ok(directory)
    }

    /// Creates a file without a name. Its space is free when it is closed.
    ///
    /// # Errors
    /// Such as a full disk, or no free descriptor.
    pub(super) fn create_file(&self) -> io::Result<File> {
        // EXCL: the file can never get a name (open(2), `O_TMPFILE`).
        let flags = OFlags::TMPFILE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        match rustix::fs::openat(&self.folder, c".", flags, mode) {
            Ok(file) => Ok(file.into()),
            // File systems without such files, such as overlayfs of old kernels.
            Err(Errno::OPNOTSUPP | Errno::ISDIR) => self.create_unlinked(),
            Err(error) => Err(error.into()),
        }
    }

    /// Checks that the disk has space for others too.
    ///
    /// # Errors
    /// [`io::ErrorKind::StorageFull`].
    pub(super) fn check_free_space(&self) -> io::Result<()> {
        let disk = rustix::fs::fstatvfs(&self.folder)?;
        match disk.f_bavail.saturating_mul(disk.f_frsize) < self.min_free_bytes {
            true => Err(io::ErrorKind::StorageFull.into()),
            false => Ok(()),
        }
    }

    /// Returns a folder on a disk without space.
    #[cfg(test)]
    pub(super) fn on_full_disk(self) -> Self {
        Self {
            min_free_bytes: u64::MAX,
            ..self
        }
    }

    fn create_unlinked(&self) -> io::Result<File> {
        let number = NEXT_NAME.fetch_add(1, Ordering::Relaxed); // pairs with nothing: a counter
        // The process id, because two processes share the folder during a handover.
        let name = format!("{}-{number}", std::process::id());
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.folder, &name, flags, Mode::RUSR | Mode::WUSR)?;
        match rustix::fs::unlinkat(&self.folder, &name, AtFlags::empty()) {
            // The new process of a handover clears the folder, perhaps at this moment.
            Ok(()) | Err(Errno::NOENT) => Ok(file.into()),
            Err(error) => Err(error.into()),
        }
    }

    /// Fails on a file system that would keep the space of a file until its end: a long response
    /// would then fill the disk.
    fn check_file_system(&self) -> io::Result<()> {
        let file = self.create_file()?;
        file.write_all_at(&[0; 8192], 0)?;
        free_beginning(&file, 4096)
    }
}

/// Frees the first `bytes` of a file, which have been read (fallocate(2), `PUNCH_HOLE`).
///
/// # Errors
/// If the file system cannot, or is too full to note it.
pub(super) fn free_beginning(file: &File, bytes: u64) -> io::Result<()> {
    // From the start of the file: the kernel frees whole blocks, and parts of them were read
    // before.
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(file, flags, 0, bytes).map_err(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a test serves no callers")]
    fn a_folder_is_private_and_empty_and_its_files_have_no_names() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("spool");
        fs::create_dir(&path).unwrap();
        fs::write(path.join("left"), "of a crash").unwrap();
        let directory = SpoolDirectory::open_empty(&path, 1).unwrap();
        let files = [
            directory.create_file().unwrap(),
            directory.create_unlinked().unwrap(),
        ];
        assert_eq!(fs::read_dir(&path).unwrap().count(), 0);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
        for file in files {
            file.write_all_at(b"abc", 0).unwrap();
            let mut read = [0; 3];
            file.read_exact_at(&mut read, 0).unwrap();
            assert_eq!(&read, b"abc");
            assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o600);
        }
    }

    #[test]
    fn the_space_of_what_was_read_is_free_before_the_end_of_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let directory = SpoolDirectory::open_empty(folder.path(), 1).unwrap();
        let file = directory.create_file().unwrap();
        file.write_all_at(&vec![1; 1 << 20], 0).unwrap();
        file.sync_all().unwrap(); // allocates the blocks
        let before = file.metadata().unwrap().blocks();
        free_beginning(&file, 1 << 19).unwrap();
        assert!(file.metadata().unwrap().blocks() <= before / 2 + 16);
    }
}
