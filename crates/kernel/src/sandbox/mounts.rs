//! Mounts of an instance's root: detached copies of host trees, and file systems in memory.
#![expect(unsafe_code, reason = "mount_setattr has no safe wrapper")]

use std::ffi::CString;
use std::fs;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::CWD;
use rustix::mount::{MountFlags, MoveMountFlags, OpenTreeFlags, mount, move_mount, open_tree};

/// A copy of a host tree that is not mounted yet.
pub(super) struct MountTree {
    fd: OwnedFd,
    is_dir: bool,
    target: PathBuf,
}

/// Permitted use of a tree.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum MountAccess {
    ReadOnly,
    ReadWrite,
    /// A device: writable although the mount is not.
    Device,
}

impl MountTree {
    /// Copies `source` and everything mounted below it.
    pub(super) fn open_clone(
        source: &Path,
        target: &Path,
        access: MountAccess,
    ) -> io::Result<MountTree> {
        let flags = OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_RECURSIVE;
        let open = || -> io::Result<MountTree> {
            let folder = fs::metadata(source)?.is_dir();
            let fd = open_tree(CWD, source, flags)?;
            restrict_tree(&fd, access)?;
            Ok(MountTree {
                fd,
                is_dir: folder,
                target: relative_target(target)?,
            })
        };
        open().map_err(with_path(source))
    }

    /// Does the same, but returns `None` when the host has no such file.
    pub(super) fn open_if_exists(source: &Path, target: &Path) -> io::Result<Option<MountTree>> {
        match MountTree::open_clone(source, target, MountAccess::ReadOnly) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            other => other.map(Some),
        }
    }

    /// Mounts the tree below the working directory.
    pub(super) fn attach_at_target(&self) -> io::Result<()> {
        let attach = || -> io::Result<()> {
            match self.is_dir {
                true => fs::create_dir_all(&self.target)?,
                // A file of the host's trees, which are read-only.
                false if self.target.exists() => {}
                false => {
                    fs::create_dir_all(self.target.parent().unwrap_or(Path::new(".")))?;
                    fs::OpenOptions::new()
                        .create(true)
                        .append(true)
                        .open(&self.target)?;
                }
            }
            Ok(move_mount(
                &self.fd,
                c"",
                CWD,
                &self.target,
                MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH,
            )?)
        };
        attach().map_err(with_path(&self.target))
    }
}

/// Restricts a tree and all mounts in it. Existing restrictions stay: a user namespace may not
/// remove them.
fn restrict_tree(tree: impl AsFd, access: MountAccess) -> io::Result<()> {
    let attr_set = match access {
        MountAccess::ReadOnly => {
            libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV
        }
        MountAccess::ReadWrite => libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV,
        MountAccess::Device => libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NOEXEC,
    };
    mount_setattr(
        tree.as_fd().as_raw_fd(),
        libc::AT_EMPTY_PATH | libc::AT_RECURSIVE,
        c"",
        attr_set,
    )
}

/// Makes the root mount read-only, and none below it.
pub(super) fn seal_root() -> io::Result<()> {
    mount_setattr(libc::AT_FDCWD, 0, c"/", libc::MOUNT_ATTR_RDONLY)
}

/// Wraps `mount_setattr(2)`, which neither rustix nor every C library has.
fn mount_setattr(folder: i32, flags: i32, path: &std::ffi::CStr, attr_set: u64) -> io::Result<()> {
    let attributes = libc::mount_attr {
        attr_set,
        attr_clr: 0,
        propagation: 0,
        userns_fd: 0,
    };
    // SAFETY: path is NUL-terminated and attributes is a mount_attr of the given size; both outlive
    // the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            folder,
            path.as_ptr(),
            flags,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Mounts a file system in memory of `size` bytes on an existing folder.
pub(super) fn mount_tmpfs(target: &Path, mode: u32, size: u64) -> io::Result<()> {
    let options = CString::new(format!("mode={mode:o},size={size}")).expect("digits hold no NUL");
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    mount(c"nearpath", target, c"tmpfs", flags, options.as_c_str())
        .map_err(|error| with_path(target)(error.into()))
}

/// Converts a path inside an instance to one below the root that is being built.
pub(super) fn relative_target(path: &Path) -> io::Result<PathBuf> {
    use std::path::Component::{Normal, RootDir};
    let normalized = path.is_absolute()
        && path
            .components()
            .all(|part| matches!(part, RootDir | Normal(_)));
    match path.strip_prefix("/") {
        Ok(relative) if normalized => Ok(relative.to_owned()),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "the path is not absolute or contains `..`",
        )),
    }
}

/// Prefixes an error with a path.
pub(super) fn with_path(path: &Path) -> impl Fn(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_cannot_leave_the_root() {
        assert_eq!(
            relative_target(Path::new("/home/app")).unwrap(),
            Path::new("home/app")
        );
        for bad in ["home/app", "/home/../etc", "../x", ""] {
            assert!(relative_target(Path::new(bad)).is_err(), "{bad}");
        }
    }
}
