//! Emptying and removing a group.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::at;

const PATIENCE: Duration = Duration::from_secs(5);
/// Between a process's end and its group's being empty lie a few instructions of the kernel that nothing announces.
const BREATH: Duration = Duration::from_micros(200);

/// What a sweep found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Swept {
    /// Processes that were still running.
    pub killed: usize,
    /// Folders removed, over all hierarchies.
    pub removed: usize,
}

/// Kills everything in the group and in those below, and removes them. Returns how many processes were killed.
pub(super) fn remove(folder: &Path) -> io::Result<usize> {
    let (mut killed, deadline) = (0, Instant::now() + PATIENCE);
    loop {
        match fs::remove_dir(folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(killed),
            Err(error) if Instant::now() > deadline => return Err(at(folder, error)),
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => killed += empty(folder)?,
            other => return other.map(|()| killed).map_err(|error| at(folder, error)),
        }
    }
}

fn empty(folder: &Path) -> io::Result<usize> {
    let mut killed = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            killed += remove(&entry.path())?;
        }
    }
    let processes = kill(folder)?;
    match processes.is_empty() {
        true => std::thread::sleep(BREATH),
        false => wait(&processes)?,
    }
    Ok(killed + processes.len())
}

/// Kills the group's processes; what is returned shows their end. A pidfd never means another process that got the
/// same number.
fn kill(folder: &Path) -> io::Result<Vec<OwnedFd>> {
    let list = fs::read_to_string(folder.join("cgroup.procs"))?;
    let pids = list.lines().filter_map(|line| Pid::from_raw(line.parse().ok()?));
    let running: Vec<_> = pids.filter_map(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()).collect();
    for process in &running {
        let _ = pidfd_send_signal(process, Signal::KILL); // fails when it has ended by itself
    }
    Ok(running)
}

fn wait(processes: &[OwnedFd]) -> io::Result<()> {
    for process in processes {
        let second = Timespec { tv_sec: 1, tv_nsec: 0 };
        poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&second))?;
    }
    Ok(())
}
