//! Numbering of the processes on one data directory, where one may still end while its successor
//! runs.
//!
//! Resources of one process only bear its number: cgroups, temporary folders, domain sockets. A
//! successor therefore never removes what its predecessor still needs. A file lock holds the
//! number; the kernel releases it however the process ends.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use nearpath_kernel::bpf::SocketCgroupGuard;
use nearpath_kernel::cgroup::NodeCgroups;
use rustix::fs::{FlockOperation, flock};

/// Maximum number of processes on a data directory at a time.
const MAX_RUNS: usize = 16;

/// A number that this process holds while the value lives.
#[derive(Debug)]
pub struct RunLock {
    number: usize,
    #[allow(dead_code, reason = "held, not read")]
    lock: File,
}

impl RunLock {
    /// Claims the smallest free number.
    ///
    /// # Errors
    /// Fails when the folder cannot be written, or sixteen processes are still ending.
    pub fn claim_number(data_dir: &Path) -> io::Result<Self> {
        fs::create_dir_all(locks_folder(data_dir))?;
        // The lowest free number: leftovers of its earlier owner are swept before use.
        for number in 0..MAX_RUNS {
            if let Some(lock) = try_lock(data_dir, number, true)? {
                return Ok(Self { number, lock });
            }
        }
        Err(io::Error::new(
            io::ErrorKind::QuotaExceeded,
            "too many processes on this folder are still ending: wait until they have ended",
        ))
    }

    /// Returns the number.
    pub fn number(&self) -> usize {
        self.number
    }
}

/// Returns a name with the run's number. The first run uses the plain name.
pub fn run_name(name: &str, run: usize) -> String {
    match run {
        0 => name.to_owned(),
        run => format!("{name}.{run}"),
    }
}

/// Removes leftovers of ended runs that could not clean up themselves. Blocks.
///
/// # Errors
/// Fails when something cannot be killed or removed.
pub fn sweep_ended_runs(data_dir: &Path, node: &str) -> io::Result<()> {
    SocketCgroupGuard::sweep_leftovers();
    for number in 0..MAX_RUNS {
        // Held during the sweep, or a new process could claim the number. A lock that is not free
        // means that the run is alive: the kernel releases it when a process dies.
        let Some(_lock) = try_lock(data_dir, number, false)? else {
            continue;
        };
        let cgroups = NodeCgroups::detect(&run_name(node, number));
        let report = cgroups.sweep_leftovers()?;
        cgroups.remove_node_folders();
        if report.removed > 0 {
            tracing::info!(
                cgroups = report.removed,
                killed = report.killed,
                "removed leftovers of an earlier run"
            );
        }
        for leftover in ["tmp", "dispatch", "trust"] {
            remove_folder(&data_dir.join(run_name(leftover, number)))?;
        }
    }
    Ok(())
}

fn remove_folder(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn locks_folder(data_dir: &Path) -> PathBuf {
    data_dir.join("runs")
}

/// Tries to lock a number. Returns `None` if another process holds it, or if the file is missing
/// and not to be created.
fn try_lock(data_dir: &Path, number: usize, create: bool) -> io::Result<Option<File>> {
    let file =
        // The content is unused; only the lock counts.
        OpenOptions::new().write(true).create(create).truncate(false).open(locks_folder(data_dir).join(number.to_string()));
    let file = match file {
        Err(error) if error.kind() == io::ErrorKind::NotFound && !create => return Ok(None),
        file => file?,
    };
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_reused_after_its_run_ends() {
        let folder = tempfile::tempdir().unwrap();
        let claim = || RunLock::claim_number(folder.path()).unwrap();
        let (first, second) = (claim(), claim());
        assert_eq!((first.number(), second.number()), (0, 1));
        drop(first);
        assert_eq!((claim().number(), second.number()), (0, 1));
        let all: Vec<_> = (0..MAX_RUNS - 1).map(|_| claim()).collect();
        assert!(RunLock::claim_number(folder.path()).is_err(), "{all:?}");
    }

    #[test]
    fn a_sweep_spares_living_runs() {
        let folder = tempfile::tempdir().unwrap();
        let (ended, lives) = (
            RunLock::claim_number(folder.path()).unwrap(),
            RunLock::claim_number(folder.path()).unwrap(),
        );
        let tmp = |run: &RunLock| folder.path().join(run_name("tmp", run.number()));
        let (gone, there) = (tmp(&ended), tmp(&lives));
        drop(ended);
        [&gone, &there]
            .iter()
            .for_each(|path| fs::create_dir_all(path.join("sub")).unwrap());
        sweep_ended_runs(folder.path(), "a-node-that-is-none").unwrap();
        assert!(!gone.exists() && there.exists());
    }
}
