//! The cgroup in which the instances of a node make their sockets, for programs that decide on them.
//!
//! A socket belongs to the unified cgroup (v2) of the process that made it, for its whole life. Where
//! instances have groups of their own there, the node's folder contains these. On a hybrid machine they
//! have none: the zygote enters this group, and its children are in it from the start.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::hierarchy::own_unified_group;
use super::{NodeCgroups, limits, with_path};

/// Time for the end of the processes inside.
const REMOVE_TIMEOUT: Duration = Duration::from_secs(1);
/// Pause before the next attempt: a group becomes empty without any notification.
const RETRY_INTERVAL: Duration = Duration::from_micros(200);

/// A cgroup with all sockets of a node's instances, and no others. Drop it after the launcher.
#[derive(Debug)]
pub struct SocketGroup {
    folder: PathBuf,
    /// The zygote enters it. Nothing else uses the folder, which ends with this value.
    is_for_zygote: bool,
}

impl SocketGroup {
    /// Finds or creates the group of a node.
    ///
    /// # Errors
    /// `Unsupported` without a unified hierarchy. Fails also when this process may not create a group in
    /// it.
    pub fn open(cgroups: &NodeCgroups) -> io::Result<Self> {
        if let Some(folder) = cgroups.unified_folder() {
            return Ok(Self {
                folder: folder.to_owned(),
                is_for_zygote: false,
            });
        }
        let folder = zygote_folder(&cgroups.node)?;
        match fs::create_dir(&folder) {
            // An earlier run of this node may have left it.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => remove_children(&folder),
            created => created.map_err(|error| with_path(&folder, error))?,
        }
        // Not a domain: this process may have threaded groups beside it, and the kernel allows only one
        // kind below a group that is not the root (cgroup-v2.rst, "Threads").
        let kind = folder.join("cgroup.type");
        limits::write_existing(&kind, "threaded").map_err(|error| with_path(&kind, error))?;
        Ok(Self {
            folder,
            is_for_zygote: true,
        })
    }

    /// Returns the folder of the group.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the folder of the group that the zygote has to enter; `None` where instances enter their own.
    pub fn zygote_group(&self) -> Option<PathBuf> {
        self.is_for_zygote.then(|| self.folder.clone())
    }
}

fn zygote_folder(node: &str) -> io::Result<PathBuf> {
    Ok(own_unified_group()?.join(format!("nearpath-{node}-instances")))
}

/// Removes the group of a node whose instances have ended, and ends its zygote.
pub(super) fn remove_zygote_group(node: &str) {
    let Ok(folder) = zygote_folder(node) else {
        return; // no unified hierarchy
    };
    remove_children(&folder);
    let deadline = Instant::now() + REMOVE_TIMEOUT;
    loop {
        match fs::remove_dir(&folder) {
            Err(error)
                if error.kind() == io::ErrorKind::ResourceBusy && Instant::now() < deadline =>
            {
                kill_members(&folder);
                std::thread::sleep(RETRY_INTERVAL);
            }
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return tracing::debug!(%error, group = %folder.display(), "cgroup could not be removed; the node's next start uses it");
            }
            _ => return,
        }
    }
}

/// Removes a group below that of the zygote, whose processes have ended.
pub(super) fn remove_child(folder: &Path) {
    let deadline = Instant::now() + REMOVE_TIMEOUT;
    // A group becomes empty some instructions after its last process has ended.
    while let Err(error) = fs::remove_dir(folder) {
        if error.kind() != io::ErrorKind::ResourceBusy || Instant::now() > deadline {
            return;
        }
        kill_members(folder);
        std::thread::sleep(RETRY_INTERVAL);
    }
}

/// Removes the groups of frozen instances.
fn remove_children(folder: &Path) {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let children = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    children.for_each(|child| remove_child(&child.path()));
}

/// Kills the processes inside. A threaded group lists threads only.
fn kill_members(folder: &Path) {
    let threads = fs::read_to_string(folder.join("cgroup.threads")).unwrap_or_default();
    let ids = threads
        .lines()
        .filter_map(|id| Pid::from_raw(id.parse().ok()?));
    // Opening fails for threads that lead no process; their leaders are inside, too.
    let processes = ids.filter_map(|id| pidfd_open(id, PidfdFlags::empty()).ok());
    for process in processes {
        let _ = pidfd_send_signal(process, Signal::KILL); // it may have ended
    }
}

impl Drop for SocketGroup {
    fn drop(&mut self) {
        if self.is_for_zygote {
            // Fails while an instance is inside; the next process of that name uses it again.
            let _ = fs::remove_dir(&self.folder);
        }
    }
}
