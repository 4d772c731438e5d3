//! Which of the processes on one data directory this is, while one is still ending and its successor has begun.
//!
//! What belongs to a process's life alone (its cgroups, its instances' temporary folders, the doors to its domains) bears its number, so that a
//! successor does not sweep away what its predecessor still needs. A number is held by a lock, which the kernel takes back however the
//! process ends.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use nearpath_kernel::bpf::Fence;
use nearpath_kernel::cgroup::Cgroups;
use rustix::fs::{FlockOperation, flock};

/// Most processes that may be on a data directory at the same time.
const MOST: usize = 16;

/// A number that belongs to this process for as long as the value lives.
#[derive(Debug)]
pub struct Run {
    number: usize,
    #[allow(dead_code, reason = "held, not read")]
    lock: File,
}

impl Run {
    /// Takes the smallest number that is free.
    ///
    /// # Errors
    /// When the folder cannot be written, or sixteen processes are still ending.
    pub fn claim(data_dir: &Path) -> io::Result<Self> {
        fs::create_dir_all(folder(data_dir))?;
        for number in 0..MOST {
            if let Some(lock) = lock(data_dir, number, true)? {
                return Ok(Self { number, lock });
            }
        }
        Err(io::Error::new(
            io::ErrorKind::QuotaExceeded,
            "too many processes on this folder are still ending: wait for their end",
        ))
    }

    /// The number.
    pub fn number(&self) -> usize {
        self.number
    }
}

/// A name as a run bears it; the first run's is the name itself.
pub fn named(name: &str, run: usize) -> String {
    match run {
        0 => name.to_owned(),
        run => format!("{name}.{run}"),
    }
}

/// Removes what runs that have ended left behind, if they could not do so themselves. Blocks.
///
/// # Errors
/// When something cannot be killed or removed.
pub fn sweep(data_dir: &Path, node: &str) -> io::Result<()> {
    Fence::sweep();
    for number in 0..MOST {
        let Some(_lock) = lock(data_dir, number, false)? else { continue };
        let cgroups = Cgroups::detect(&named(node, number));
        let swept = cgroups.sweep()?;
        cgroups.leave();
        if swept.removed > 0 {
            tracing::info!(cgroups = swept.removed, killed = swept.killed, "removed what an earlier run left behind");
        }
        for leftover in ["tmp", "dispatch"] {
            remove(&data_dir.join(named(leftover, number)))?;
        }
    }
    Ok(())
}

fn remove(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn folder(data_dir: &Path) -> PathBuf {
    data_dir.join("runs")
}

/// `None`: another process has it or, unless it is to be made, nobody ever had.
fn lock(data_dir: &Path, number: usize, make: bool) -> io::Result<Option<File>> {
    let file =
        OpenOptions::new().write(true).create(make).truncate(false).open(folder(data_dir).join(number.to_string()));
    let file = match file {
        Err(error) if error.kind() == io::ErrorKind::NotFound && !make => return Ok(None),
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
    fn numbers_are_given_once_and_again_after_their_end() {
        let folder = tempfile::tempdir().unwrap();
        let claim = || Run::claim(folder.path()).unwrap();
        let (first, second) = (claim(), claim());
        assert_eq!((first.number(), second.number()), (0, 1));
        drop(first);
        assert_eq!((claim().number(), second.number()), (0, 1));
        let all: Vec<_> = (0..MOST - 1).map(|_| claim()).collect();
        assert!(Run::claim(folder.path()).is_err(), "{all:?}");
    }

    #[test]
    fn only_what_ended_is_swept() {
        let folder = tempfile::tempdir().unwrap();
        let (ended, lives) = (Run::claim(folder.path()).unwrap(), Run::claim(folder.path()).unwrap());
        let tmp = |run: &Run| folder.path().join(named("tmp", run.number()));
        let (gone, there) = (tmp(&ended), tmp(&lives));
        drop(ended);
        [&gone, &there].iter().for_each(|path| fs::create_dir_all(path.join("sub")).unwrap());
        sweep(folder.path(), "a-node-that-is-none").unwrap();
        assert!(!gone.exists() && there.exists());
    }
}
