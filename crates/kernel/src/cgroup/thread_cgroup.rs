//! A cgroup for some threads of this process, with a CPU quota.
//!
//! In a v1 hierarchy the group is beside the node's folder. In the unified hierarchy (v2) it is a
//! threaded group below this process's own: threads may not leave their process's domain. See the
//! kernel's `admin-guide/cgroup-v2.rst`, "Threads", and `scheduler/sched-bwc.rst`.
//!
//! A killed process leaves an empty folder. The next process of that name reuses it, or
//! [`super::NodeCgroups::sweep_leftovers`] removes it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::thread::gettid;

use super::hierarchy::{CgroupController, CgroupHierarchy, CgroupVersion, own_v2_group};
use super::limits::{self, parse_field};
use super::{NodeCgroups, with_path};

/// Suffix after the node's name.
const GROUP_SUFFIX: &str = "-gateway";
/// Pause between two attempts to remove a group.
const RETRY_INTERVAL: Duration = Duration::from_micros(200);

/// A cgroup for threads of this process. Dropping it removes the group once its threads have ended.
#[derive(Debug)]
pub struct ThreadCgroup {
    folder: PathBuf,
    version: CgroupVersion,
}

impl ThreadCgroup {
    /// Creates an empty group without a limit.
    ///
    /// # Errors
    /// Fails without a usable CPU controller, or when the kernel rejects the group.
    pub fn create(cgroups: &NodeCgroups) -> io::Result<Self> {
        let hierarchy = cgroups
            .hierarchies
            .iter()
            .find(|hierarchy| hierarchy.has_controller(CgroupController::Cpu));
        let unavailable = || {
            io::Error::new(
                io::ErrorKind::Unsupported,
                "no CPU controller is available to this process (cgroups)",
            )
        };
        let hierarchy = hierarchy.ok_or_else(unavailable)?;
        let folder = group_folder(hierarchy).ok_or_else(unavailable)?;
        match fs::create_dir(&folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(with_path(&folder, error));
            }
            _ => {} // a killed process left it behind
        }
        let group = Self {
            folder,
            version: hierarchy.version,
        };
        if group.version == CgroupVersion::V2 {
            group.make_threaded()?;
        }
        Ok(group)
    }

    fn make_threaded(&self) -> io::Result<()> {
        let (kind, parent) = (
            self.folder.join("cgroup.type"),
            self.folder.with_file_name("cgroup.subtree_control"),
        );
        // The type first: only with a threaded child may a parent with processes enable a
        // controller (cgroup-v2.rst, "Threads").
        limits::write_existing(&kind, "threaded").map_err(|error| with_path(&kind, error))?;
        limits::write_existing(&parent, "+cpu").map_err(|error| with_path(&parent, error))
    }

    /// Moves the calling thread into the group.
    ///
    /// # Errors
    /// Fails when the kernel refuses.
    pub fn add_current_thread(&self) -> io::Result<()> {
        let file = self.folder.join(self.version.thread_file());
        limits::write_existing(&file, &gettid().as_raw_nonzero().to_string())
            .map_err(|error| with_path(&file, error))
    }

    /// Limits its threads together to so many thousandths of a core. Throttled threads continue at
    /// once.
    ///
    /// # Errors
    /// Fails when the kernel refuses.
    pub fn set_quota(&self, millis: u64) -> io::Result<()> {
        limits::write_cpu_limit(self.version, &self.folder, millis)
    }

    /// Returns the total time of throttling, which the kernel adds when threads continue.
    ///
    /// The number of throttled periods is less exact: it grows at the end of a period, or never if
    /// a new quota comes before.
    ///
    /// # Errors
    /// Fails when the group is gone.
    pub fn throttled_time(&self) -> io::Result<Duration> {
        let file = self.folder.join("cpu.stat");
        let text = fs::read_to_string(&file).map_err(|error| with_path(&file, error))?;
        Ok(match self.version {
            CgroupVersion::V1 => Duration::from_nanos(parse_field(&text, "throttled_time")),
            CgroupVersion::V2 => Duration::from_micros(parse_field(&text, "throttled_usec")),
        })
    }

    /// Returns the CPU time of its living threads.
    ///
    /// Summed over the threads, because a v1 hierarchy may count time in another group than it
    /// limits.
    ///
    /// # Errors
    /// Fails when the group is gone, or the kernel does not count (`CONFIG_SCHED_INFO`).
    pub fn cpu_time(&self) -> io::Result<Duration> {
        let file = self.folder.join(self.version.thread_file());
        let threads = fs::read_to_string(&file).map_err(|error| with_path(&file, error))?;
        let mut sum = Duration::ZERO;
        for thread in threads.lines() {
            match fs::read_to_string(format!("/proc/self/task/{thread}/schedstat")) {
                Ok(text) => sum += parse_run_time(&text),
                // the thread has ended
                Err(error) if error.kind() == io::ErrorKind::NotFound && has_schedstat() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(sum)
    }
}

impl Drop for ThreadCgroup {
    fn drop(&mut self) {
        if let Err(error) = remove_when_empty(&self.folder) {
            tracing::debug!(%error, group = %self.folder.display(), "cgroup could not be removed; the next start removes it");
        }
    }
}

/// Removes the group. A joined thread stays in its group for a few more kernel instructions,
/// without any notification.
fn remove_when_empty(folder: &Path) -> io::Result<()> {
    let deadline = Instant::now() + Duration::from_secs(1);
    loop {
        match fs::remove_dir(folder) {
            Err(error)
                if error.kind() == io::ErrorKind::ResourceBusy && Instant::now() < deadline =>
            {
                std::thread::sleep(RETRY_INTERVAL);
            }
            other => return other,
        }
    }
}

/// Removes what a killed process left behind. Never kills: threads inside belong to a living
/// process.
pub(super) fn sweep_leftover(hierarchy: &CgroupHierarchy) {
    let _ = group_folder(hierarchy).map(fs::remove_dir); // usually there is none
}

/// Returns the folder of that node's group.
fn group_folder(hierarchy: &CgroupHierarchy) -> Option<PathBuf> {
    let node = hierarchy.folder.file_name()?.to_str()?;
    match hierarchy.version {
        CgroupVersion::V1 => Some(
            hierarchy
                .folder
                .with_file_name(format!("{node}{GROUP_SUFFIX}")),
        ),
        CgroupVersion::V2 => {
            let own = fs::read_to_string("/proc/self/cgroup").ok()?;
            let own_group = own_v2_group(&own)?.trim_start_matches('/').to_owned();
            Some(
                mount_point(hierarchy)?
                    .join(own_group)
                    .join(format!("nearpath-{node}{GROUP_SUFFIX}")),
            )
        }
    }
}

/// Returns the topmost folder above the node's that is a cgroup.
fn mount_point(hierarchy: &CgroupHierarchy) -> Option<PathBuf> {
    let is_group = |folder: &&Path| folder.join("cgroup.controllers").exists();
    hierarchy
        .folder
        .ancestors()
        .take_while(is_group)
        .last()
        .map(Path::to_owned)
}

fn has_schedstat() -> bool {
    Path::new("/proc/self/schedstat").exists()
}

/// Parses the first number: nanoseconds on a processor (`Documentation/scheduler/sched-stats.rst`).
fn parse_run_time(schedstat: &str) -> Duration {
    Duration::from_nanos(
        schedstat
            .split(' ')
            .next()
            .and_then(|text| text.parse().ok())
            .unwrap_or(0),
    )
}
