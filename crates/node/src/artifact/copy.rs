//! Copying of a tenant's folder without following links or resolving a name twice.
//!
//! The node may be root, and the owner may change the folder at any time. Every step therefore goes
//! through the descriptor of its parent folder (`openat` with `O_NOFOLLOW`). Checks apply to the
//! opened file.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, fstat, openat, readlinkat, statat};
use rustix::io::Errno;

use super::contents::{self, ContentName, ContentStore};

/// System folders of every instance. Absolute links into them work inside too; a virtual
/// environment's `python` is one.
const SYSTEM_DIRS: &[&str] = &[
    "/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/dev", "/proc", "/tmp",
];

/// Maximum nesting of folders.
const MAX_DEPTH: usize = 64;

/// Limits of a function's folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FolderLimit {
    /// Maximum bytes of all files.
    pub bytes: u64,
    /// Maximum number of files, folders and links.
    pub entries: u64,
}

impl Default for FolderLimit {
    fn default() -> Self {
        Self {
            bytes: 1 << 30,
            entries: 100_000,
        }
    }
}

/// Reasons why a folder was not copied. The texts are for the tenant, with paths as written there.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the texts describe the variants
pub enum CopyError {
    #[error("{path}: {error}", path = path.display())]
    Io { path: PathBuf, error: io::Error },
    #[error("{path} is a link to {target:?}, outside of the folder: an instance cannot see that; copy the target into the folder or make the link relative", path = path.display())]
    Escapes { path: PathBuf, target: PathBuf },
    #[error("{path} is neither file, folder nor link: remove it", path = path.display())]
    Special { path: PathBuf },
    #[error(
        "the folder holds more than {0} bytes: remove what is not needed to run (caches, .git, test data)"
    )]
    TooLarge(u64),
    #[error(
        "the folder holds more than {0} files: remove what is not needed to run (caches, .git, test data)"
    )]
    TooMany(u64),
    #[error("{path} is nested deeper than {MAX_DEPTH} folders: flatten the folder", path = path.display())]
    TooDeep { path: PathBuf },
}

impl CopyError {
    /// Returns whether the owner must change the folder; system errors may pass.
    pub fn is_lasting(&self) -> bool {
        !matches!(self, Self::Io { .. })
    }
}

/// Copies `source` to `target`, which must not exist. Links into `shared_dirs` work inside. Copied
/// files are readable for everyone and not writable. `contents` shares equal ones with other copies
/// in the namespace.
///
/// # Errors
/// See [`CopyError`]; a part of the copy may exist.
pub(super) fn copy_folder(
    source: &Path,
    target: &Path,
    limit: FolderLimit,
    shared_dirs: &[PathBuf],
    contents: Option<(&ContentStore, &str)>,
) -> Result<(), CopyError> {
    // Links are followed here only: the operator may deploy through a link.
    let top = rustix::fs::open(
        source,
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    );
    let top = top.map_err(|errno| io_error(source, errno.into()))?;
    let mut copy = FolderCopier {
        source: source.to_owned(),
        limit,
        left: limit,
        shared_dirs: shared_dirs.to_owned(),
        contents,
        // Beside the copy, where the tenant has no file.
        spare: target.with_extension("link"),
    };
    copy.copy_folder(top, Path::new(""), target, 0)
}

fn io_error(path: &Path, error: io::Error) -> CopyError {
    CopyError::Io {
        path: path.to_owned(),
        error,
    }
}

struct FolderCopier<'a> {
    source: PathBuf,
    limit: FolderLimit,
    left: FolderLimit,
    shared_dirs: Vec<PathBuf>,
    /// Contents of the copies in a namespace; `None`: equal files are not shared.
    contents: Option<(&'a ContentStore, &'a str)>,
    /// Unused name in the file system of the copy.
    spare: PathBuf,
}

impl FolderCopier<'_> {
    /// Copies a folder. `at` is its path below the source, for error texts and link checks.
    fn copy_folder(
        &mut self,
        from: OwnedFd,
        at: &Path,
        target: &Path,
        depth: usize,
    ) -> Result<(), CopyError> {
        if depth > MAX_DEPTH {
            return Err(CopyError::TooDeep {
                path: self.source_path(at),
            });
        }
        fs::create_dir(target).map_err(|error| io_error(target, error))?;
        let entries = Dir::read_from(&from).map_err(|errno| self.copy_error(at, errno))?;
        for entry in entries {
            let entry = entry.map_err(|errno| self.copy_error(at, errno))?;
            let name = Path::new(std::ffi::OsStr::from_bytes(entry.file_name().to_bytes()));
            if name != Path::new(".") && name != Path::new("..") {
                self.copy_entry(&from, name, &at.join(name), &target.join(name), depth)?;
            }
        }
        // Last, and whatever the umask is: instances run under other users.
        set_mode(target, 0o755)
    }

    fn copy_entry(
        &mut self,
        from: &OwnedFd,
        name: &Path,
        at: &Path,
        target: &Path,
        depth: usize,
    ) -> Result<(), CopyError> {
        self.left.entries = self
            .left
            .entries
            .checked_sub(1)
            .ok_or(CopyError::TooMany(self.limit.entries))?;
        // Only a hint for the way to open: the opened file is checked again.
        let kind = statat(from, name, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|errno| self.copy_error(at, errno))?;
        let open = |flags| {
            openat(
                from,
                name,
                flags | OFlags::NOFOLLOW | OFlags::CLOEXEC,
                Mode::empty(),
            )
        };
        match FileType::from_raw_mode(kind.st_mode) {
            FileType::Directory => {
                let inner = open(OFlags::RDONLY | OFlags::DIRECTORY)
                    .map_err(|errno| self.copy_error(at, errno))?;
                self.copy_folder(inner, at, target, depth + 1)
            }
            FileType::Symlink => self.copy_link(from.as_fd(), name, at, target),
            FileType::RegularFile => {
                // Without O_NONBLOCK, opening a FIFO that replaced the file would block.
                let file = open(OFlags::RDONLY | OFlags::NONBLOCK)
                    .map_err(|errno| self.copy_error(at, errno))?;
                self.copy_file(File::from(file), at, target)
            }
            _ => Err(CopyError::Special {
                path: self.source_path(at),
            }),
        }
    }

    fn copy_file(&mut self, from: File, at: &Path, target: &Path) -> Result<(), CopyError> {
        let stat = fstat(&from).map_err(|errno| self.copy_error(at, errno))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(CopyError::Special {
                path: self.source_path(at),
            }); // replaced since it was listed
        }
        let mut to = File::create_new(target).map_err(|error| io_error(target, error))?;
        // One byte above the limit is enough to detect that it is exceeded.
        let from = from.take(self.left.bytes.saturating_add(1));
        let (copied, digest) = contents::copy_bytes(from, &mut to)
            .map_err(|error| io_error(&self.source_path(at), error))?;
        self.left.bytes = self
            .left
            .bytes
            .checked_sub(copied)
            .ok_or(CopyError::TooLarge(self.limit.bytes))?;
        // Other bits are the owner's business; the copy must only keep programs runnable.
        let executable = stat.st_mode & 0o111 != 0;
        set_mode(target, if executable { 0o555 } else { 0o444 })?;
        if let (Some((contents, namespace)), true) = (self.contents, copied > 0) {
            let name = ContentName {
                namespace,
                digest: &digest,
                is_executable: executable,
            };
            contents.share_file(target, &self.spare, &name);
        }
        Ok(())
    }

    fn copy_link(
        &self,
        from: impl AsFd,
        name: &Path,
        at: &Path,
        target: &Path,
    ) -> Result<(), CopyError> {
        let text =
            readlinkat(from, name, Vec::new()).map_err(|errno| self.copy_error(at, errno))?;
        let link_target = Path::new(std::ffi::OsStr::from_bytes(text.to_bytes()));
        let is_shared = self
            .shared_dirs
            .iter()
            .any(|dir| link_target.starts_with(dir));
        match stays_inside(at, link_target)
            || (is_shared && !link_target.components().any(is_parent))
        {
            true => symlink(link_target, target).map_err(|error| io_error(target, error)),
            false => Err(CopyError::Escapes {
                path: self.source_path(at),
                target: link_target.to_owned(),
            }),
        }
    }

    fn copy_error(&self, at: &Path, errno: Errno) -> CopyError {
        io_error(&self.source_path(at), errno.into())
    }

    fn source_path(&self, at: &Path) -> PathBuf {
        self.source.join(at)
    }
}

fn set_mode(path: &Path, mode: u32) -> Result<(), CopyError> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
        .map_err(|error| io_error(path, error))
}

/// Returns whether a link at `at` (relative to the source) stays visible in the instance.
///
/// Only its text is checked. Copying never follows links, so a wrong result only causes an error
/// inside the instance.
fn stays_inside(at: &Path, link_target: &Path) -> bool {
    if link_target.is_absolute() {
        return SYSTEM_DIRS
            .iter()
            .any(|system_dir| link_target.starts_with(system_dir))
            && !link_target.components().any(is_parent);
    }
    let mut depth = at.components().count().saturating_sub(1);
    link_target.components().all(|component| match component {
        Component::ParentDir => depth.checked_sub(1).map(|up| depth = up).is_some(),
        Component::Normal(_) => {
            depth += 1;
            true
        }
        _ => true,
    })
}

fn is_parent(component: Component<'_>) -> bool {
    component == Component::ParentDir
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_checked_by_their_target() {
        let inside = |at, link_target| stays_inside(Path::new(at), Path::new(link_target));
        assert!(inside("bin/run", "../lib/run.py"));
        assert!(inside("bin/python", "/usr/bin/python3"));
        assert!(inside("a", "./b/../c"));
        assert!(!inside("bin/run", "../../secret"));
        assert!(!inside("a", ".."));
        assert!(!inside("a", "b/../../c"));
        assert!(!inside("a", "/root/.ssh/id_rsa"));
        assert!(!inside("a", "/usr/../root"));
        assert!(!inside("a", "/usrlocal"));
    }
}
