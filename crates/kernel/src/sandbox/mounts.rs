//! Mounting, as an instance's root needs it: detached copies of host trees, and file systems in memory.
#![expect(unsafe_code, reason = "mount_setattr has no safe wrapper")]

use std::ffi::CString;
use std::fs;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::CWD;
use rustix::mount::{MountFlags, MoveMountFlags, OpenTreeFlags, mount, move_mount, open_tree};

/// A copy of a host tree that is not mounted anywhere yet.
pub(super) struct Tree {
    fd: OwnedFd,
    folder: bool,
    target: PathBuf,
}

/// What may be done with a tree.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    Read,
    Write,
    /// A device: written to although the mount itself changes nothing.
    Device,
}

impl Tree {
    /// Copies `source` and everything mounted below it.
    pub(super) fn open(source: &Path, target: &Path, access: Access) -> io::Result<Tree> {
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
        let open = || -> io::Result<Tree> {
            let folder = fs::metadata(source)?.is_dir();
            let fd = open_tree(CWD, source, flags)?;
            restrict(&fd, access)?;
            Ok(Tree { fd, folder, target: inside(target)? })
        };
        open().map_err(named(source))
    }

    /// As [`Tree::open`], but nothing when there is no such file on this host.
    pub(super) fn open_if_there(source: &Path, target: &Path) -> io::Result<Option<Tree>> {
        match Tree::open(source, target, Access::Read) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            other => other.map(Some),
        }
    }

    /// Mounts it below the working directory.
    pub(super) fn attach(&self) -> io::Result<()> {
        let attach = || -> io::Result<()> {
            match self.folder {
                true => fs::create_dir_all(&self.target)?,
                false => {
                    fs::create_dir_all(self.target.parent().unwrap_or(Path::new(".")))?;
                    fs::OpenOptions::new().create(true).append(true).open(&self.target)?;
                }
            }
            Ok(move_mount(&self.fd, c"", CWD, &self.target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
        };
        attach().map_err(named(&self.target))
    }
}

/// Adds restrictions to a tree and all mounts in it. Flags that were there stay: in a user namespace they must.
fn restrict(tree: impl AsFd, access: Access) -> io::Result<()> {
    let attr_set = match access {
        Access::Read => libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV,
        Access::Write => libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV,
        Access::Device => libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NOEXEC,
    };
    set_attributes(tree.as_fd().as_raw_fd(), libc::AT_EMPTY_PATH | libc::AT_RECURSIVE, c"", attr_set)
}

/// Makes the mount at the root of the file system read-only, and none below it.
pub(super) fn seal_root() -> io::Result<()> {
    set_attributes(libc::AT_FDCWD, 0, c"/", libc::MOUNT_ATTR_RDONLY)
}

/// `mount_setattr(2)`; the wrapper that neither rustix nor the C library has everywhere.
fn set_attributes(folder: i32, flags: i32, path: &std::ffi::CStr, attr_set: u64) -> io::Result<()> {
    let attributes = libc::mount_attr { attr_set, attr_clr: 0, propagation: 0, userns_fd: 0 };
    // SAFETY: path is NUL-terminated and attributes is a mount_attr of the size that is told; both outlive the call.
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
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Mounts a file system in memory, of `size` bytes, on an existing folder.
pub(super) fn memory(target: &Path, mode: u32, size: u64) -> io::Result<()> {
    let options = CString::new(format!("mode={mode:o},size={size}")).expect("digits hold no NUL");
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    mount(c"nearpath", target, c"tmpfs", flags, options.as_c_str()).map_err(|error| named(target)(error.into()))
}

/// A path inside an instance, relative to the root that is being built.
pub(super) fn inside(path: &Path) -> io::Result<PathBuf> {
    use std::path::Component::{Normal, RootDir};
    let plain = path.is_absolute() && path.components().all(|part| matches!(part, RootDir | Normal(_)));
    match path.strip_prefix("/") {
        Ok(relative) if plain => Ok(relative.to_owned()),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "not an absolute path without `..`")),
    }
}

/// Puts a path in front of an error.
pub(super) fn named(path: &Path) -> impl Fn(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_cannot_leave_the_root() {
        assert_eq!(inside(Path::new("/home/app")).unwrap(), Path::new("home/app"));
        for bad in ["home/app", "/home/../etc", "../x", ""] {
            assert!(inside(Path::new(bad)).is_err(), "{bad}");
        }
    }
}
