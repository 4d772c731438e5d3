//! Programs that a lab has started, and their end.
//!
//! Namespaces and devices of a lab are held by file descriptors, so the kernel takes them away with the process, however it
//! dies. Programs in them would go on. Each carries a mark in its environment that names the process whose lab it was, by
//! number and start time (numbers are given again), and the PID namespace in which that number counts. The next lab kills what
//! carries the mark of a process that is no more.

use std::fmt;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// The environment variable that holds the mark.
pub(super) const MARK_VARIABLE: &str = "NEARPATH_LAB";

/// How often it is looked for programs that were started while others were killed.
const MAX_KILL_ROUNDS: usize = 20;

/// Names a process that no other process is ever taken for, until the machine starts anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LabMark {
    /// The inode of the PID namespace.
    pub(super) numbering: u64,
    pub(super) pid: u32,
    /// In clock ticks since the machine started.
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

    /// The mark in a process's environment, if it has one and it can be read.
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

    /// Whether the process it names is no more. One of another PID namespace cannot be asked for, so it counts as living.
    fn is_dead(self, numbering: u64) -> bool {
        self.numbering == numbering && process_start(self.pid) != Some(self.started)
    }
}

impl fmt::Display for LabMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.numbering, self.pid, self.started)
    }
}

/// Kills the programs of labs whose process is dead; returns how many.
pub(super) fn sweep_leftovers() -> io::Result<usize> {
    let numbering = boot_numbering()?;
    kill_marked(|pid| LabMark::of_process(pid).is_some_and(|mark| mark.is_dead(numbering)))
}

/// Kills every process in a network namespace, and those that they start meanwhile. This process is spared.
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

/// Kills the processes of which `condemned` is true. It is asked again once the process is held, which cannot be another then.
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

/// Waits until a killed process is no more than an entry for its parent; at most a second, should the kernel hold it.
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

/// The 22nd field of `/proc/PID/stat`. The second is the program's name, in brackets, and may hold anything.
fn process_start(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, after_name) = text.rsplit_once(')')?;
    after_name.split_ascii_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// A process that carries `mark` and ends with its input.
    fn marked_process(mark: LabMark) -> Child {
        let mut command = Command::new("cat");
        command
            .env(MARK_VARIABLE, mark.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    }

    /// The number of a process that has ended, and been taken note of.
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
            sweep_leftovers().unwrap(); // a child has its environment only some time after its start
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
