//! The instance's root: a file system in memory with read-only pieces of the host, and nothing else of it.
//!
//! The host's trees are copied first, while their paths can still be walked. Then the new root is mounted, filled and
//! made the root of the namespace (`man 2 pivot_root`), and the old one is let go with all that was mounted in it.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount};

use super::etc;
use super::mounts::{self, Access, Tree, inside, named};
use super::spec::{Isolation, Spec};

/// The new root is put up here for a moment: a folder that every Linux has.
const SCAFFOLD: &str = "/usr";
const SHARED_MEMORY_BYTES: u64 = 64 << 20;
const SECRETS_BYTES: u64 = 16 << 20;
const DEVICES: &[&str] = &["null", "zero", "full", "random", "urandom"];
/// Links into `/usr` on a host with a merged one, folders on others.
const MERGED: &[&str] = &["bin", "sbin", "lib", "lib32", "lib64", "libx32"];

/// Builds the root and moves into it. The mount namespace must be the caller's own.
pub(super) fn build(spec: &Spec) -> io::Result<()> {
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    let trees = trees(spec)?;
    let links = links()?;
    mounts::memory(Path::new(SCAFFOLD), 0o755, spec.root_bytes)?;
    std::env::set_current_dir(SCAFFOLD)?;
    furnish(spec)?;
    for (name, target) in links {
        symlink(target, name)?;
    }
    for tree in &trees {
        tree.attach()?;
    }
    secrets(spec)?;
    hand_over(spec)?;
    enter()?;
    if spec.read_only_root { mounts::seal_root() } else { Ok(()) }
}

/// The uid and gid that the instance runs with, as its own namespace counts them.
pub(super) fn user(spec: &Spec) -> (u32, u32) {
    match spec.isolation {
        Isolation::Root => (spec.uid, spec.gid),
        Isolation::UserNamespace | Isolation::None => (0, 0),
    }
}

fn trees(spec: &Spec) -> io::Result<Vec<Tree>> {
    let mut trees = vec![Tree::open(Path::new("/usr"), Path::new("/usr"), Access::Read)?];
    let folders = MERGED.iter().map(|name| Path::new("/").join(name)).filter(|path| !path.is_symlink());
    let optional = ["/opt"].iter().chain(etc::FROM_HOST).map(PathBuf::from).chain(folders);
    for path in optional {
        trees.extend(Tree::open_if_there(&path, &path)?);
    }
    for device in DEVICES {
        let path = Path::new("/dev").join(device);
        trees.push(Tree::open(&path, &path, Access::Device)?);
    }
    for bind in &spec.binds {
        let access = if bind.writable { Access::Write } else { Access::Read };
        trees.push(Tree::open(&bind.source, &bind.target, access)?);
    }
    trees.push(Tree::open(&spec.program, Path::new(Spec::WATCHDOG), Access::Read)?);
    Ok(trees)
}

/// The host's own `/bin -> usr/bin` and the like.
fn links() -> io::Result<Vec<(&'static str, PathBuf)>> {
    let linked = MERGED.iter().filter(|name| Path::new("/").join(name).is_symlink());
    linked.map(|name| Ok((*name, fs::read_link(Path::new("/").join(name))?))).collect()
}

/// Folders and files that are the instance's own, below the working directory.
fn furnish(spec: &Spec) -> io::Result<()> {
    for folder in ["proc", "dev/shm", "tmp", "run", "var/tmp", "home/app"] {
        fs::create_dir_all(folder).map_err(named(Path::new(folder)))?;
    }
    let (uid, gid) = user(spec);
    etc::write(spec, uid, gid)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC | MountFlags::RDONLY;
    mount(c"proc", "proc", c"proc", flags, None).map_err(|error| named(Path::new("/proc"))(error.into()))?;
    mounts::memory(Path::new("tmp"), 0o1777, spec.tmp_bytes)?;
    mounts::memory(Path::new("dev/shm"), 0o1777, SHARED_MEMORY_BYTES)?;
    symlink("/proc/self/fd", "dev/fd")?;
    for (fd, name) in ["stdin", "stdout", "stderr"].iter().enumerate() {
        symlink(format!("/proc/self/fd/{fd}"), format!("dev/{name}"))?;
    }
    Ok(())
}

/// Secrets are only ever in memory, and only their instance's user may read them.
fn secrets(spec: &Spec) -> io::Result<()> {
    let folder = inside(Path::new(Spec::SECRETS))?;
    fs::create_dir_all(&folder)?;
    if spec.secrets.is_empty() {
        return Ok(());
    }
    mounts::memory(&folder, 0o700, SECRETS_BYTES)?;
    write_secrets(spec, &folder)?;
    let (uid, gid) = user(spec);
    chown(&folder, Some(uid), Some(gid))
}

/// Writes the secrets into `folder`, each readable by its owner alone.
pub(super) fn write_secrets(spec: &Spec, folder: &Path) -> io::Result<()> {
    let (uid, gid) = user(spec);
    for (name, content) in &spec.secrets {
        let plain = !name.is_empty() && !name.contains('/') && name != "." && name != "..";
        if !plain {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("secret {name:?} is not a file name")));
        }
        let path = folder.join(name);
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o400).open(&path)?;
        file.write_all(content).map_err(named(&path))?;
        if spec.isolation == Isolation::Root {
            chown(&path, Some(uid), Some(gid))?;
        }
    }
    Ok(())
}

/// Where the root can be written to, the instance's user owns its own folders.
fn hand_over(spec: &Spec) -> io::Result<()> {
    let (uid, gid) = user(spec);
    fs::set_permissions("var/tmp", fs::Permissions::from_mode(0o1777))?;
    let own = if spec.read_only_root { &["home/app"][..] } else { &[".", "home", "home/app", "var", "run"] };
    own.iter().try_for_each(|folder| chown(folder, Some(uid), Some(gid)))
}

/// Makes the working directory the root. The old root ends up on top of it and is let go, so no folder for it is needed.
fn enter() -> io::Result<()> {
    rustix::process::pivot_root(".", ".")?;
    unmount(".", UnmountFlags::DETACH)?;
    std::env::set_current_dir("/")
}
