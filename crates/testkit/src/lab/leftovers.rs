//! Programs that a lab has started, and their end.
//!
//! Namespaces and devices of a lab are held by file descriptors, so the kernel removes them with
//! the process, however it dies. Programs in them would go on. Each has a mark in its environment
//! that names the process whose lab it was: its pid, its start time (pids are reused) and its PID
//! namespace. The next lab kills programs with the mark of a process that has ended.

use std::fmt;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// Name of the environment variable that holds the mark.
pub(super) const MARK_VARIABLE: &str = "NEARPATH_LAB";

/// Maximum number of searches for programs that were started while others were killed.
const MAX_KILL_ROUNDS: usize = 20;

/// Identifies a process uniquely until the machine restarts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LabMark {
    /// Inode of the PID namespace.
    pub(super) numbering: u64,
    pub(super) pid: u32,
    /// Start time in clock ticks since the machine started.
    pub(super) started: u64,
}

impl LabMark {
    pub(super) fn of_this_process() -> io::Result<Self> {
        let pid = std::process::id();
        let started = process_start(pid)
            .ok_or_else(|| io::Error::other("/proc/self/stat has no start time"))?;
        Ok(Self {
            numbering: boot_numbering()?,
            pid,
            started,
        })
    }

    /// Reads the mark from a process's environment, if there is one.
    fn of_process(pid: u32) -> Option<Self> {
        let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
        let mut variables = environment.split(|&octet| octet == 0);
        let value =
            variables.find_map(|v| v.strip_prefix(MARK_VARIABLE.as_bytes())?.strip_prefix(b"="))?;
        Self::parse_mark(str::from_utf8(value).ok()?)
    }

    fn parse_mark(text: &str) -> Option<Self> {
        let mut parts = text.split('.');
        let mark = Self {
            numbering: parts.next()?.parse().ok()?,
            pid: parts.next()?.parse().ok()?,
            started: parts.next()?.parse().ok()?,
        };
        parts.next().is_none().then_some(mark)
    }

    /// Returns true if the process has ended. A process of another PID namespace cannot be checked
    /// and counts as alive.
    fn is_dead(self, numbering: u64) -> bool {
        self.numbering == numbering && process_start(self.pid) != Some(self.started)
    }
}

impl fmt::Display for LabMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.numbering, self.pid, self.started)
    }
}

/// Kills programs of labs whose process has ended, and returns their number.
pub(super) fn sweep_leftovers() -> io::Result<usize> {
    let numbering = boot_numbering()?;
    kill_marked(|pid| LabMark::of_process(pid).is_some_and(|mark| mark.is_dead(numbering)))
}

/// Kills every process in a network namespace, and those that they start meanwhile, except this
/// one.
pub(super) fn clear_namespace(namespace: BorrowedFd<'_>) -> io::Result<()> {
    let inode = rustix::fs::fstat(namespace)?.st_ino;
    let inside = |pid: u32| {
        fs::metadata(format!("/proc/{pid}/ns/net")).is_ok_and(|found| found.ino() == inode)
    };
    for _ in 0..MAX_KILL_ROUNDS {
        if kill_marked(inside)? == 0 {
            return Ok(());
        }
    }
    Err(io::Error::other("there are always more of them"))
}

/// Kills the processes for which `condemned` returns true. It is asked again while the process is
/// held by a pidfd, when its pid cannot be reused.
fn kill_marked(condemned: impl Fn(u32) -> bool) -> io::Result<usize> {
    let mut killed = 0;
    for pid in list_processes()?.filter(|&pid| pid != std::process::id() && condemned(pid)) {
        let Some(number) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
            continue;
        };
        let Ok(process) = pidfd_open(number, PidfdFlags::empty()) else {
            continue;
        };
        if condemned(pid) && pidfd_send_signal(process.as_fd(), Signal::KILL).is_ok() {
            wait_ended(process.as_fd());
            killed += 1;
        }
    }
    Ok(killed)
}

/// Waits until a killed process is a zombie, for a second at most.
fn wait_ended(process: BorrowedFd<'_>) {
    let mut event = [rustix::event::PollFd::new(
        &process,
        rustix::event::PollFlags::IN,
    )];
    let second = rustix::event::Timespec {
        tv_sec: 1,
        tv_nsec: 0,
    };
    let _ = rustix::event::poll(&mut event, Some(&second));
}

fn list_processes() -> io::Result<impl Iterator<Item = u32>> {
    let entries = fs::read_dir("/proc")?;
    Ok(entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok()))
}

fn boot_numbering() -> io::Result<u64> {
    Ok(fs::metadata("/proc/self/ns/pid")?.ino())
}

/// Reads the 22nd field of `/proc/PID/stat`. The second is the program's name in brackets, which
/// may contain anything.
fn process_start(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, after_name) = text.rsplit_once(')')?;
    after_name.split_ascii_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// Starts a process with `mark` that ends with its input.
    fn marked_process(mark: LabMark) -> Child {
        let mut command = Command::new("cat");
        command
            .env(MARK_VARIABLE, mark.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    }

    /// Returns the pid of a process that has ended and been reaped.
    fn dead_mark() -> u32 {
        let mut child = Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        child.id()
    }

    #[test]
    fn what_a_dead_process_left_is_killed_and_a_living_ones_is_not() {
        let living = LabMark::of_this_process().unwrap();
        let reused = LabMark {
            started: living.started + 1,
            ..living
        };
        let elsewhere = LabMark {
            numbering: living.numbering + 1,
            pid: dead_mark(),
            ..living
        };
        let mut spared = [living, elsewhere].map(marked_process);
        let mut condemned = [
            LabMark {
                pid: dead_mark(),
                ..living
            },
            reused,
        ]
        .map(marked_process);
        while condemned
            .iter_mut()
            .any(|child| child.try_wait().unwrap().is_none())
        {
            // a child's environment appears only some time after its start
            sweep_leftovers().unwrap();
        }
        for child in &mut spared {
            assert!(
                child.try_wait().unwrap().is_none(),
                "a living run's program was killed"
            );
            drop(child.stdin.take());
            assert!(child.wait().unwrap().success());
        }
    }

    #[test]
    fn marks_are_read_as_written() {
        let mark = LabMark {
            numbering: 1,
            pid: 2,
            started: 3,
        };
        assert_eq!(LabMark::parse_mark(&mark.to_string()), Some(mark));
        assert_eq!(
            [
                LabMark::parse_mark("1.2"),
                LabMark::parse_mark("1.2.3.4"),
                LabMark::parse_mark("")
            ],
            [None; 3]
        );
    }
}
