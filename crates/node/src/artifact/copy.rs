//! Copies a tenant's folder without ever following a link or trusting a name twice.
//!
//! The node may be root and the folder may belong to anyone, who may change it meanwhile. So every step goes through the
//! descriptor of the folder it is in (`openat` with `O_NOFOLLOW`), and what was opened is what is judged.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, fstat, openat, readlinkat, statat};
use rustix::io::Errno;

/// System folders that every instance has: an absolute link into them works inside, too (a virtual environment's
/// `python` is one).
const SYSTEM: &[&str] = &["/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/opt", "/dev", "/proc", "/tmp"];

/// The deepest nesting of folders.
const DEEPEST: usize = 64;

/// How much a function's folder may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// Bytes of all files.
    pub bytes: u64,
    /// Files, folders and links.
    pub entries: u64,
}

impl Default for Limit {
    fn default() -> Self {
        Self { bytes: 1 << 30, entries: 100_000 }
    }
}

/// Why a folder was not copied; the texts are for the tenant, paths are as the tenant wrote them.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the texts say it
pub enum CopyError {
    #[error("{path}: {error}", path = path.display())]
    Io { path: PathBuf, error: io::Error },
    #[error("{path} is a link to {target:?}, outside of the folder: an instance cannot see that; copy the target into the folder or make the link relative", path = path.display())]
    Escapes { path: PathBuf, target: PathBuf },
    #[error("{path} is neither file, folder nor link: remove it", path = path.display())]
    Special { path: PathBuf },
    #[error("it holds more than {0} bytes: remove what is not needed to run (caches, .git, test data)")]
    TooLarge(u64),
    #[error("it holds more than {0} files: remove what is not needed to run (caches, .git, test data)")]
    TooMany(u64),
    #[error("{path} lies deeper than {DEEPEST} folders", path = path.display())]
    TooDeep { path: PathBuf },
}

impl CopyError {
    /// Whether the folder's owner has to change it; what the system refuses may pass.
    pub fn is_lasting(&self) -> bool {
        !matches!(self, Self::Io { .. })
    }
}

/// Copies `source` to `target`, which must not exist. All files become readable for everyone, none writable.
///
/// # Errors
/// See [`CopyError`]; part of the copy may exist then.
pub(super) fn folder(source: &Path, target: &Path, limit: Limit) -> Result<(), CopyError> {
    let top = rustix::fs::open(source, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let top = top.map_err(|errno| io_error(source, errno.into()))?;
    let mut copy = Copy { source: source.to_owned(), limit, left: limit };
    copy.folder(top, Path::new(""), target, 0)
}

fn io_error(path: &Path, error: io::Error) -> CopyError {
    CopyError::Io { path: path.to_owned(), error }
}

struct Copy {
    source: PathBuf,
    limit: Limit,
    left: Limit,
}

impl Copy {
    /// `at` is the path below the source, for texts and for judging links.
    fn folder(&mut self, from: OwnedFd, at: &Path, target: &Path, depth: usize) -> Result<(), CopyError> {
        if depth > DEEPEST {
            return Err(CopyError::TooDeep { path: self.shown(at) });
        }
        fs::create_dir(target).map_err(|error| io_error(target, error))?;
        let entries = Dir::read_from(&from).map_err(|errno| self.failed(at, errno))?;
        for entry in entries {
            let entry = entry.map_err(|errno| self.failed(at, errno))?;
            let name = Path::new(std::ffi::OsStr::from_bytes(entry.file_name().to_bytes()));
            if name != Path::new(".") && name != Path::new("..") {
                self.entry(&from, name, &at.join(name), &target.join(name), depth)?;
            }
        }
        open_up(target, 0o755)
    }

    fn entry(&mut self, from: &OwnedFd, name: &Path, at: &Path, target: &Path, depth: usize) -> Result<(), CopyError> {
        self.left.entries = self.left.entries.checked_sub(1).ok_or(CopyError::TooMany(self.limit.entries))?;
        let kind = statat(from, name, AtFlags::SYMLINK_NOFOLLOW).map_err(|errno| self.failed(at, errno))?;
        let open = |flags| openat(from, name, flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty());
        match FileType::from_raw_mode(kind.st_mode) {
            FileType::Directory => {
                let inner = open(OFlags::RDONLY | OFlags::DIRECTORY).map_err(|errno| self.failed(at, errno))?;
                self.folder(inner, at, target, depth + 1)
            }
            FileType::Symlink => self.link(from.as_fd(), name, at, target),
            FileType::RegularFile => {
                let file = open(OFlags::RDONLY | OFlags::NONBLOCK).map_err(|errno| self.failed(at, errno))?;
                self.file(File::from(file), at, target)
            }
            _ => Err(CopyError::Special { path: self.shown(at) }),
        }
    }

    fn file(&mut self, from: File, at: &Path, target: &Path) -> Result<(), CopyError> {
        let stat = fstat(&from).map_err(|errno| self.failed(at, errno))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(CopyError::Special { path: self.shown(at) }); // it was exchanged since it was listed
        }
        let mut to = File::create_new(target).map_err(|error| io_error(target, error))?;
        let copied = io::copy(&mut from.take(self.left.bytes.saturating_add(1)), &mut to);
        let copied = copied.map_err(|error| io_error(&self.shown(at), error))?;
        self.left.bytes = self.left.bytes.checked_sub(copied).ok_or(CopyError::TooLarge(self.limit.bytes))?;
        let executable = stat.st_mode & 0o111 != 0;
        open_up(target, if executable { 0o555 } else { 0o444 })
    }

    fn link(&self, from: impl AsFd, name: &Path, at: &Path, target: &Path) -> Result<(), CopyError> {
        let text = readlinkat(from, name, Vec::new()).map_err(|errno| self.failed(at, errno))?;
        let goal = Path::new(std::ffi::OsStr::from_bytes(text.to_bytes()));
        match stays_inside(at, goal) {
            true => symlink(goal, target).map_err(|error| io_error(target, error)),
            false => Err(CopyError::Escapes { path: self.shown(at), target: goal.to_owned() }),
        }
    }

    fn failed(&self, at: &Path, errno: Errno) -> CopyError {
        io_error(&self.shown(at), errno.into())
    }

    fn shown(&self, at: &Path) -> PathBuf {
        self.source.join(at)
    }
}

fn open_up(path: &Path, mode: u32) -> Result<(), CopyError> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(|error| io_error(path, error))
}

/// Whether a link at `at` (relative to the top) leads to something that the instance sees. Judged by the letters alone:
/// links are never followed while copying, so a wrong answer costs the tenant an error inside and nobody else anything.
fn stays_inside(at: &Path, goal: &Path) -> bool {
    if goal.is_absolute() {
        return SYSTEM.iter().any(|system| goal.starts_with(system)) && !goal.components().any(is_parent);
    }
    let mut depth = at.components().count().saturating_sub(1);
    goal.components().all(|component| match component {
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
    fn links_are_judged_by_where_they_lead() {
        let inside = |at, goal| stays_inside(Path::new(at), Path::new(goal));
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
