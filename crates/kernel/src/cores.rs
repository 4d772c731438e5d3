//! Processors: which there are, how busy they are, and keeping the threads of a group on one of them.
//!
//! Threads on one processor are scheduled as batches there (`SCHED_BATCH`, sched(7)): one that is woken does not interrupt
//! the one that wakes it, so what the waker still had to send goes with the same bell.
#![expect(unsafe_code, reason = "rustix has no sched_setscheduler")]

use std::fs;
use std::io;
use std::path::Path;

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Rounds of looking for threads that were made while others were moved; those inherit from who was moved.
const ROUNDS: usize = 3;

/// What a processor has done since the machine started, in ticks (proc_stat(5)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticks {
    /// Its number.
    pub number: usize,
    /// With anything.
    pub busy: u64,
    /// With nothing, and waiting for a disk.
    pub idle: u64,
}

/// The processors that this process may use.
///
/// # Errors
/// Never, as long as the machine has fewer than 1024.
pub fn own() -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|&number| set.is_set(number)).collect())
}

/// What every processor has done.
///
/// # Errors
/// When `/proc` is not there.
pub fn ticks() -> io::Result<Vec<Ticks>> {
    Ok(fs::read_to_string("/proc/stat")?.lines().filter_map(line).collect())
}

/// `cpuN user nice system idle iowait irq softirq steal guest guest_nice`; a guest's time is in the user's already.
fn line(text: &str) -> Option<Ticks> {
    let (name, rest) = text.split_once(' ')?;
    let number = name.strip_prefix("cpu")?.parse().ok()?;
    let all: Vec<u64> = rest.split_ascii_whitespace().take(8).map(|field| field.parse().unwrap_or(0)).collect();
    let idle = all.iter().skip(3).take(2).sum();
    Some(Ticks { number, busy: all.iter().sum::<u64>() - idle, idle })
}

/// Lets the calling thread interrupt every ordinary one, as the kernel's own interrupts do (`SCHED_FIFO`, sched(7)): for a
/// thread that stands for a piece of hardware and sleeps most of the time. Threads that it starts are ordinary.
///
/// # Errors
/// Without `CAP_SYS_NICE`, or in a group of processes that may not.
pub fn prefer_this_thread() -> io::Result<()> {
    let lowest = libc::sched_param { sched_priority: 1 };
    // SAFETY: the call takes numbers, and a pointer that is valid for the kernel's read.
    let result =
        unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, &raw const lowest) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Moves the threads that a group's file lists, from where they were put to elsewhere; `None` is every one of `all`. A
/// thread that has chosen its processors by itself stays there. Returns how many were moved.
pub(crate) fn place(file: &Path, all: &[usize], from: Option<usize>, to: Option<usize>) -> io::Result<usize> {
    let (old, new) = (set(all, from), set(all, to));
    let mut moved = 0;
    for _ in 0..ROUNDS {
        let list = fs::read_to_string(file)?;
        let threads = list.lines().filter_map(|line| Pid::from_raw(line.parse().ok()?));
        let round = threads.filter(|&thread| place_one(thread, &old, &new, to.is_some())).count();
        moved += round;
        if round == 0 {
            break;
        }
    }
    Ok(moved)
}

/// One that has ended meanwhile need not be moved.
fn place_one(thread: Pid, old: &CpuSet, new: &CpuSet, together: bool) -> bool {
    let ours = sched_getaffinity(Some(thread)).is_ok_and(|set| set == *old);
    let moved = ours && sched_setaffinity(Some(thread), new).is_ok();
    if moved {
        batch(thread, together);
    }
    moved
}

/// Only between the two usual policies: a thread that has another one keeps it.
fn batch(thread: Pid, together: bool) {
    let thread = thread.as_raw_nonzero().get();
    let (old, new) =
        if together { (libc::SCHED_OTHER, libc::SCHED_BATCH) } else { (libc::SCHED_BATCH, libc::SCHED_OTHER) };
    // SAFETY: both calls take numbers, and a pointer that is valid for the kernel's read. Failing, they change nothing.
    unsafe {
        if libc::sched_getscheduler(thread) == old {
            let priority = libc::sched_param { sched_priority: 0 }; // the only one that these policies have
            libc::sched_setscheduler(thread, new, &raw const priority);
        }
    }
}

fn set(all: &[usize], only: Option<usize>) -> CpuSet {
    let mut set = CpuSet::new();
    all.iter().copied().filter(|&number| only.is_none_or(|only| only == number)).for_each(|number| set.set(number));
    set
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn ticks_are_read_by_processor() {
        let text = "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 1 2 3 40 5 6 7 8 9 10\ncpu11 1 0 0 2 0 0 0 0\nintr 5";
        let all: Vec<_> = text.lines().filter_map(line).collect();
        assert_eq!(all, [Ticks { number: 0, busy: 27, idle: 45 }, Ticks { number: 11, busy: 1, idle: 2 }]);
        assert!(!ticks().unwrap().is_empty());
    }

    #[test]
    fn threads_go_where_they_are_put_unless_they_chose_by_themselves() {
        let all = own().unwrap();
        if all.len() < 2 {
            nearpath_testkit::skip!("it takes two processors");
        }
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let mut file = tempfile::NamedTempFile::new().unwrap();
        writeln!(file, "{}", child.id()).unwrap();
        let thread = Pid::from_child(&child);
        let place = |from, to| place(file.path(), &all, from, to).unwrap();
        // SAFETY: it takes a number and returns one.
        let policy = || unsafe { libc::sched_getscheduler(thread.as_raw_nonzero().get()) };
        let there = || sched_getaffinity(Some(thread)).unwrap();

        assert_eq!(place(None, Some(all[1])), 1);
        assert_eq!((there(), policy()), (set(&all, Some(all[1])), libc::SCHED_BATCH));
        assert_eq!(place(None, Some(all[0])), 0, "it is not where it would be moved from");
        assert_eq!(place(Some(all[1]), None), 1);
        assert_eq!((there(), policy()), (set(&all, None), libc::SCHED_OTHER));
        sched_setaffinity(Some(thread), &set(&all, Some(all[0]))).unwrap(); // as its own code would
        assert_eq!(place(None, Some(all[1])), 0);
        assert_eq!(there(), set(&all, Some(all[0])));
        drop(child.stdin.take());
        child.wait().unwrap();
    }
}
