//! Freezing the processes of an instance: they stop, use no CPU time, and keep their memory
//! (`admin-guide/cgroup-v2.rst`, `cgroup.freeze`).
//!
//! Only the unified hierarchy is used: a process that the freezer of v1 holds cannot be killed.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::limits::write_existing;
use super::{CgroupVersion, InstanceCgroup, with_path};

/// Time for all processes to stop. A process in an uninterruptible system call stops at its end.
const FREEZE_TIMEOUT: Duration = Duration::from_secs(1);
/// Interval between two looks for processes that still run.
const POLL_INTERVAL: Duration = Duration::from_micros(200);
/// Attempts to move all processes: a process may fork meanwhile.
const MAX_MOVES: usize = 16;

/// Group of the unified hierarchy that freezes an instance.
#[derive(Debug, Clone)]
pub(super) enum FreezerGroup {
    /// The instance's own.
    Own(PathBuf),
    /// One below the group of the zygote, into which the first freeze moves the instance.
    BelowZygote(PathBuf),
}

impl InstanceCgroup {
    /// Lets the instance be frozen in a group below that of the zygote
    /// ([`super::SocketGroup::zygote_group`]), where it has no group of its own.
    pub fn set_zygote_group(&mut self, zygote: Option<PathBuf>) {
        let own = self
            .folders
            .iter()
            .find(|(hierarchy, _)| hierarchy.version == CgroupVersion::V2);
        self.freezer = match (own, zygote, self.folders.first()) {
            (Some((_, folder)), _, _) => Some(FreezerGroup::Own(folder.clone())),
            (None, Some(zygote), Some((_, folder))) => folder
                .file_name()
                .map(|id| FreezerGroup::BelowZygote(zygote.join(id))),
            _ => None,
        };
    }

    /// Returns whether the instance can be frozen on this machine.
    pub fn can_freeze(&self) -> bool {
        self.freezer.is_some()
    }

    /// Stops all processes of the instance. Waits until they have stopped.
    ///
    /// # Errors
    /// Fails on a machine without a unified hierarchy, and when they do not stop within a second.
    /// They go on after an error.
    pub fn freeze(&self) -> io::Result<()> {
        let freezer = self.freezer.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        // The first freeze moves; later ones find processes that were started from outside.
        if let FreezerGroup::BelowZygote(folder) = freezer {
            self.move_into(folder)?;
        }
        write_freeze(freezer.folder(), "1")?;
        wait_frozen(freezer.folder()).inspect_err(|_| drop(self.thaw()))
    }

    /// Lets the processes of the instance go on. It may not be frozen.
    ///
    /// # Errors
    /// Fails when its group is gone.
    pub fn thaw(&self) -> io::Result<()> {
        match &self.freezer {
            Some(freezer) if freezer.folder().exists() => write_freeze(freezer.folder(), "0"),
            _ => Ok(()),
        }
    }

    /// Moves the instance's memory to swap space as far as the kernel can. May take seconds.
    ///
    /// # Errors
    /// Fails when the kernel reclaims less than asked for, which is usual.
    pub fn reclaim_memory(&self) -> io::Result<()> {
        let Some((hierarchy, folder)) = self.memory_group() else {
            return Ok(());
        };
        match hierarchy.version {
            // Any value will do.
            CgroupVersion::V1 => fs::write(folder.join("memory.force_empty"), "0"),
            CgroupVersion::V2 => {
                let used = fs::read_to_string(folder.join("memory.current"))?;
                fs::write(folder.join("memory.reclaim"), used.trim())
            }
        }
    }

    /// Moves all processes into a group, and makes that if it is missing.
    fn move_into(&self, folder: &Path) -> io::Result<()> {
        if !folder.exists() {
            fs::create_dir(folder).map_err(|error| with_path(folder, error))?;
            write_file(&folder.join("cgroup.type"), "threaded")?;
        }
        let (_, listed) = self.folders.first().ok_or(io::ErrorKind::NotFound)?;
        for _ in 0..MAX_MOVES {
            let outside = processes_outside(listed, folder)?;
            if outside.is_empty() {
                return Ok(());
            }
            let target = folder.join("cgroup.procs");
            for process in outside {
                match write_existing(&target, &process) {
                    // It has ended.
                    Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                    written => written.map_err(|error| with_path(&target, error))?,
                }
            }
        }
        Err(io::Error::other("its processes fork all the time"))
    }

    /// Removes the group that was made for freezing. All processes have ended.
    pub(super) fn remove_freezer(&self) {
        if let Some(FreezerGroup::BelowZygote(folder)) = &self.freezer {
            super::socket_group::remove_child(folder);
        }
    }
}

impl FreezerGroup {
    fn folder(&self) -> &Path {
        match self {
            Self::Own(folder) | Self::BelowZygote(folder) => folder,
        }
    }
}

/// Returns the processes of one group that are not in another, which is threaded: it lists threads.
fn processes_outside(group: &Path, threaded: &Path) -> io::Result<Vec<String>> {
    // The whole group first: a process that is moved in between counts as inside.
    let processes = fs::read_to_string(group.join("cgroup.procs"))?;
    // A threaded group has no list of processes (cgroup-v2.rst, "Threads").
    let threads = fs::read_to_string(threaded.join("cgroup.threads"))?;
    let inside: BTreeSet<_> = threads.lines().collect();
    let outside = processes.lines().filter(|id| !inside.contains(id));
    Ok(outside.map(str::to_owned).collect())
}

fn write_freeze(folder: &Path, value: &str) -> io::Result<()> {
    write_file(&folder.join("cgroup.freeze"), value)
}

fn write_file(file: &Path, text: &str) -> io::Result<()> {
    write_existing(file, text).map_err(|error| with_path(file, error))
}

fn wait_frozen(folder: &Path) -> io::Result<()> {
    let deadline = Instant::now() + FREEZE_TIMEOUT;
    while !is_frozen(folder)? {
        if Instant::now() > deadline {
            return Err(io::ErrorKind::TimedOut.into());
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

fn is_frozen(folder: &Path) -> io::Result<bool> {
    let events = fs::read_to_string(folder.join("cgroup.events"))?;
    Ok(events.lines().any(|line| line == "frozen 1"))
}

/// Returns whether this machine has swap space, into which frozen instances can go.
pub fn has_swap() -> bool {
    // The first line is a heading.
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    swaps.lines().count() > 1
}
