//! Killing the processes of a group, and removing it.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::with_path;

// Longer than any exit that does not hang: a killed process frees its memory first.
const REMOVE_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause before the next attempt. A group becomes empty a few kernel instructions after its last
/// process ended, without any notification.
const RETRY_INTERVAL: Duration = Duration::from_micros(200);

/// Result of a sweep.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SweepReport {
    /// Processes that were still running.
    pub killed: usize,
    /// Folders removed, over all hierarchies.
    pub removed: usize,
}

/// Kills all processes in the group and its descendants, and removes the groups. Returns the number
/// of killed processes.
pub(super) fn remove_group(folder: &Path) -> io::Result<usize> {
    let (mut killed, deadline) = (0, Instant::now() + REMOVE_TIMEOUT);
    loop {
        match fs::remove_dir(folder) {
            // Removed meanwhile, by another sweep or by its own drop.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(killed),
            Err(error) if Instant::now() > deadline => return Err(with_path(folder, error)),
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                killed += empty_group(folder)?
            }
            other => {
                return other
                    .map(|()| killed)
                    .map_err(|error| with_path(folder, error));
            }
        }
    }
}

fn empty_group(folder: &Path) -> io::Result<usize> {
    let mut killed = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            // Children first: a group with children cannot be removed.
            killed += remove_group(&entry.path())?;
        }
    }
    let processes = kill_processes(folder)?;
    match processes.is_empty() {
        true => std::thread::sleep(RETRY_INTERVAL),
        false => wait_for_exit(&processes)?,
    }
    Ok(killed + processes.len())
}

/// Kills the group's processes and returns pidfds that show their end. Unlike a pid, a pidfd never
/// refers to a later process.
fn kill_processes(folder: &Path) -> io::Result<Vec<OwnedFd>> {
    let list = fs::read_to_string(folder.join("cgroup.procs"))?;
    let pids = list
        .lines()
        .filter_map(|line| Pid::from_raw(line.parse().ok()?));
    let running: Vec<_> = pids
        .filter_map(|pid| pidfd_open(pid, PidfdFlags::empty()).ok())
        .collect();
    for process in &running {
        let _ = pidfd_send_signal(process, Signal::KILL); // fails when it has already ended
    }
    Ok(running)
}

fn wait_for_exit(processes: &[OwnedFd]) -> io::Result<()> {
    for process in processes {
        let second = Timespec {
            tv_sec: 1,
            tv_nsec: 0,
        };
        // 1 s: the caller's loop checks the deadline, even when a process hangs in the kernel.
        poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&second))?;
    }
    Ok(())
}
