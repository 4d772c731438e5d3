//! The root of an instance: a file system in memory, with read-only parts of the host.
//!
//! The host's trees are copied first, while their paths still resolve. Then the new root is
//! mounted, filled and made the root of the namespace (`man 2 pivot_root`). The old root is
//! unmounted with all mounts in it.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount,
};

use super::etc_files;
use super::mounts::{self, MountAccess, MountTree, relative_target, with_path};
use super::spec::{IsolationLevel, SandboxSpec};

/// Temporary mount point of the new root: a folder that every Linux has.
const STAGING_DIR: &str = "/usr";
const SHARED_MEMORY_BYTES: u64 = 64 << 20;
const SECRETS_BYTES: u64 = 16 << 20;
const DEVICES: &[&str] = &["null", "zero", "full", "random", "urandom"];
/// Links into `/usr` on a host with merged directories, folders on others.
const USR_MERGED_DIRS: &[&str] = &["bin", "sbin", "lib", "lib32", "lib64", "libx32"];

/// Builds the root and enters it. The mount namespace must be the caller's own.
pub(super) fn build_rootfs(spec: &SandboxSpec) -> io::Result<()> {
    // Otherwise mounts made here would appear on the host.
    mount_change(
        "/",
        MountPropagationFlags::PRIVATE | MountPropagationFlags::REC,
    )?;
    // Opened before the staging directory hides `/usr`, which most of them come from.
    let trees = open_trees(spec)?;
    // Read from the host's root, before it is replaced.
    let links = usr_links()?;
    mounts::mount_tmpfs(Path::new(STAGING_DIR), 0o755, spec.root_bytes)?;
    std::env::set_current_dir(STAGING_DIR)?;
    create_own_files(spec)?;
    for (name, target) in links {
        symlink(target, name)?;
    }
    for tree in &trees {
        tree.attach_at_target()?;
    }
    mount_secrets(spec)?;
    set_ownership(spec)?;
    pivot_into()?;
    // Sealed last: everything above writes to the root.
    if spec.read_only_root {
        mounts::seal_root()
    } else {
        Ok(())
    }
}

/// Returns the uid and gid of the instance in its own user namespace.
pub(super) fn instance_user(spec: &SandboxSpec) -> (u32, u32) {
    match spec.isolation {
        IsolationLevel::Root => (spec.uid, spec.gid),
        IsolationLevel::UserNamespace | IsolationLevel::None => (0, 0),
    }
}

fn open_trees(spec: &SandboxSpec) -> io::Result<Vec<MountTree>> {
    let mut trees = vec![MountTree::open_clone(
        Path::new("/usr"),
        Path::new("/usr"),
        MountAccess::ReadOnly,
    )?];
    let folders = USR_MERGED_DIRS
        .iter()
        .map(|name| Path::new("/").join(name))
        .filter(|path| !path.is_symlink());
    let optional = etc_files::HOST_FILES
        .iter()
        .map(PathBuf::from)
        .chain(folders);
    for path in optional {
        trees.extend(MountTree::open_if_exists(&path, &path)?);
    }
    for device in DEVICES {
        let path = Path::new("/dev").join(device);
        trees.push(MountTree::open_clone(&path, &path, MountAccess::Device)?);
    }
    for bind in &spec.binds {
        let access = if bind.writable {
            MountAccess::ReadWrite
        } else {
            MountAccess::ReadOnly
        };
        trees.push(MountTree::open_clone(&bind.source, &bind.target, access)?);
    }
    trees.push(MountTree::open_clone(
        &spec.program,
        Path::new(SandboxSpec::WATCHDOG_PATH),
        MountAccess::ReadOnly,
    )?);
    Ok(trees)
}

/// Reads the host's own links, like `/bin -> usr/bin`.
fn usr_links() -> io::Result<Vec<(&'static str, PathBuf)>> {
    let linked = USR_MERGED_DIRS
        .iter()
        .filter(|name| Path::new("/").join(name).is_symlink());
    linked
        .map(|name| Ok((*name, fs::read_link(Path::new("/").join(name))?)))
        .collect()
}

/// Creates the instance's own folders and files below the working directory.
fn create_own_files(spec: &SandboxSpec) -> io::Result<()> {
    for folder in ["proc", "dev/shm", "tmp", "run", "var/tmp", "home/app"] {
        fs::create_dir_all(folder).map_err(with_path(Path::new(folder)))?;
    }
    let (uid, gid) = instance_user(spec);
    etc_files::write_files(spec, uid, gid)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC | MountFlags::RDONLY;
    mount(c"proc", "proc", c"proc", flags, None)
        .map_err(|error| with_path(Path::new("/proc"))(error.into()))?;
    mounts::mount_tmpfs(Path::new("tmp"), 0o1777, spec.tmp_bytes)?;
    mounts::mount_tmpfs(Path::new("dev/shm"), 0o1777, SHARED_MEMORY_BYTES)?;
    // As on any Linux; shells need it for process substitution.
    symlink("/proc/self/fd", "dev/fd")?;
    for (fd, name) in ["stdin", "stdout", "stderr"].iter().enumerate() {
        symlink(format!("/proc/self/fd/{fd}"), format!("dev/{name}"))?;
    }
    Ok(())
}

/// Mounts the secrets in memory, readable by the instance's user only.
fn mount_secrets(spec: &SandboxSpec) -> io::Result<()> {
    let folder = relative_target(Path::new(SandboxSpec::SECRETS_DIR))?;
    fs::create_dir_all(&folder)?;
    if spec.secrets.is_empty() {
        return Ok(());
    }
    mounts::mount_tmpfs(&folder, 0o700, SECRETS_BYTES)?;
    write_secrets(spec, &folder)?;
    let (uid, gid) = instance_user(spec);
    chown(&folder, Some(uid), Some(gid))
}

/// Writes the secrets into `folder`, each readable by its owner only.
pub(super) fn write_secrets(spec: &SandboxSpec, folder: &Path) -> io::Result<()> {
    let (uid, gid) = instance_user(spec);
    for (name, content) in &spec.secrets {
        // Names come from requests: a path in one would write outside the folder.
        let is_file_name = !name.is_empty() && !name.contains('/') && name != "." && name != "..";
        if !is_file_name {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("secret name {name:?} is invalid: use a plain file name"),
            ));
        }
        let path = folder.join(name);
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            // Created with its final mode: no moment in which others can read it.
            .mode(0o400)
            .open(&path)?;
        file.write_all(content).map_err(with_path(&path))?;
        if spec.isolation == IsolationLevel::Root {
            chown(&path, Some(uid), Some(gid))?;
        }
    }
    Ok(())
}

/// Gives a writable root's folders to the instance's user.
fn set_ownership(spec: &SandboxSpec) -> io::Result<()> {
    let (uid, gid) = instance_user(spec);
    fs::set_permissions("var/tmp", fs::Permissions::from_mode(0o1777))?;
    let owned = if spec.read_only_root {
        &["home/app"][..]
    } else {
        &[".", "home", "home/app", "var", "run"]
    };
    owned
        .iter()
        .try_for_each(|folder| chown(folder, Some(uid), Some(gid)))
}

/// Makes the working directory the root. The old root is stacked on top and unmounted, so it needs
/// no folder.
fn pivot_into() -> io::Result<()> {
    rustix::process::pivot_root(".", ".")?;
    unmount(".", UnmountFlags::DETACH)?;
    std::env::set_current_dir("/")
}
