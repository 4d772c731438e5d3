//! A group for some threads of this process, with a quota of CPU time.
//!
//! In a hierarchy of its own (v1) the group stands beside the node's folder; in the unified one (v2) it is a threaded group
//! below the one that this process is in, because threads may not leave their process's group. See the kernel's
//! `admin-guide/cgroup-v2.rst`, "Threads", and `scheduler/sched-bwc.rst`. It outlives a killed process as an empty folder,
//! which the next one of that name takes over or [`super::Cgroups::sweep`] removes.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::thread::gettid;

use super::hierarchy::{Controller, Hierarchy, Version, own_v2_group};
use super::limits::{self, field};
use super::{Cgroups, at};

/// What comes after the node's name.
const SUFFIX: &str = "-gateway";
/// Between two tries to remove a group.
const BREATH: Duration = Duration::from_micros(200);

/// See the module. Dropping it removes the group, once its threads have ended.
#[derive(Debug)]
pub struct ThreadGroup {
    folder: PathBuf,
    version: Version,
}

impl ThreadGroup {
    /// Makes an empty group without a limit.
    ///
    /// # Errors
    /// When there is no CPU controller that this process may use, or the kernel refuses the group.
    pub fn create(cgroups: &Cgroups) -> io::Result<Self> {
        let hierarchy = cgroups.hierarchies.iter().find(|hierarchy| hierarchy.has(Controller::Cpu));
        let none = || io::Error::new(io::ErrorKind::Unsupported, "this process may not limit CPU time (cgroups)");
        let hierarchy = hierarchy.ok_or_else(none)?;
        let folder = place(hierarchy).ok_or_else(none)?;
        match fs::create_dir(&folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(at(&folder, error)),
            _ => {} // one that is there was left behind
        }
        let group = Self { folder, version: hierarchy.version };
        if group.version == Version::V2 {
            group.become_threaded()?;
        }
        Ok(group)
    }

    fn become_threaded(&self) -> io::Result<()> {
        let (kind, parent) = (self.folder.join("cgroup.type"), self.folder.with_file_name("cgroup.subtree_control"));
        limits::write(&kind, "threaded").map_err(|error| at(&kind, error))?;
        limits::write(&parent, "+cpu").map_err(|error| at(&parent, error))
    }

    /// Puts the calling thread in.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn enter(&self) -> io::Result<()> {
        let file = self.folder.join(self.version.thread_file());
        limits::write(&file, &gettid().as_raw_nonzero().to_string()).map_err(|error| at(&file, error))
    }

    /// Gives its threads together so many thousandths of a core; those that wait for a new period go on at once.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn set(&self, millis: u64) -> io::Result<()> {
        limits::set_cpu(self.version, &self.folder, millis)
    }

    /// How long its threads were throttled, told when they go on. Not the number of periods: that grows at a period's end, and
    /// not at all when a new quota has freed them by then.
    ///
    /// # Errors
    /// When the group is gone.
    pub fn throttled(&self) -> io::Result<Duration> {
        let file = self.folder.join("cpu.stat");
        let text = fs::read_to_string(&file).map_err(|error| at(&file, error))?;
        Ok(match self.version {
            Version::V1 => Duration::from_nanos(field(&text, "throttled_time")),
            Version::V2 => Duration::from_micros(field(&text, "throttled_usec")),
        })
    }

    /// CPU time that its threads have used, those that have ended left out. By thread, because a v1 hierarchy may count time
    /// elsewhere than it limits it.
    ///
    /// # Errors
    /// When the group is gone, or the kernel does not count (`CONFIG_SCHED_INFO`).
    pub fn used(&self) -> io::Result<Duration> {
        let file = self.folder.join(self.version.thread_file());
        let threads = fs::read_to_string(&file).map_err(|error| at(&file, error))?;
        let mut sum = Duration::ZERO;
        for thread in threads.lines() {
            match fs::read_to_string(format!("/proc/self/task/{thread}/schedstat")) {
                Ok(text) => sum += ran(&text),
                Err(error) if error.kind() == io::ErrorKind::NotFound && has_schedstat() => {} // it has ended
                Err(error) => return Err(error),
            }
        }
        Ok(sum)
    }
}

impl Drop for ThreadGroup {
    fn drop(&mut self) {
        if let Err(error) = remove(&self.folder) {
            tracing::debug!(%error, group = %self.folder.display(), "left to the next start");
        }
    }
}

/// A thread that has been joined is in its group for a few more instructions of the kernel, which nothing announces.
fn remove(folder: &Path) -> io::Result<()> {
    let deadline = Instant::now() + Duration::from_secs(1);
    loop {
        match fs::remove_dir(folder) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy && Instant::now() < deadline => {
                std::thread::sleep(BREATH);
            }
            other => return other,
        }
    }
}

/// Removes what a killed process left behind. Never kills: threads that are still in are somebody's.
pub(super) fn sweep(hierarchy: &Hierarchy) {
    let _ = place(hierarchy).map(fs::remove_dir); // mostly there is none
}

/// Where the group of that node is.
fn place(hierarchy: &Hierarchy) -> Option<PathBuf> {
    let node = hierarchy.folder.file_name()?.to_str()?;
    match hierarchy.version {
        Version::V1 => Some(hierarchy.folder.with_file_name(format!("{node}{SUFFIX}"))),
        Version::V2 => {
            let own = fs::read_to_string("/proc/self/cgroup").ok()?;
            let home = own_v2_group(&own)?.trim_start_matches('/').to_owned();
            Some(mount_of(hierarchy)?.join(home).join(format!("nearpath-{node}{SUFFIX}")))
        }
    }
}

/// The topmost folder of the hierarchy above the node's: where it is mounted.
fn mount_of(hierarchy: &Hierarchy) -> Option<PathBuf> {
    let is_group = |folder: &&Path| folder.join("cgroup.controllers").exists();
    hierarchy.folder.ancestors().take_while(is_group).last().map(Path::to_owned)
}

fn has_schedstat() -> bool {
    Path::new("/proc/self/schedstat").exists()
}

/// The first number: nanoseconds on a processor (`Documentation/scheduler/sched-stats.rst`).
fn ran(schedstat: &str) -> Duration {
    Duration::from_nanos(schedstat.split(' ').next().and_then(|text| text.parse().ok()).unwrap_or(0))
}
