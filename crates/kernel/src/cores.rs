//! Processor usage, and keeping the threads of a cgroup on one processor.
//!
//! Threads that share a processor run as batches (`SCHED_BATCH`, sched(7)), and so do busy threads: a
//! woken thread does not preempt its waker. What the waker still has to send therefore arrives with
//! the same wake-up.
#![expect(unsafe_code, reason = "rustix has no sched_setscheduler")]

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Pid;
use rustix::thread::{CpuSet, gettid, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

/// Passes over a cgroup's threads. Later passes find threads that were created during earlier ones;
/// those inherit the affinity of their creator.
const MAX_MOVE_ROUNDS: usize = 3;

/// Time that a processor has spent since boot, in ticks (proc_stat(5)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuTicks {
    /// Number of the processor.
    pub cpu: usize,
    /// Ticks spent running anything.
    pub busy_ticks: u64,
    /// Ticks spent idle or waiting for a disk.
    pub idle_ticks: u64,
}

/// Returns the processors that this process may use.
///
/// # Errors
/// Fails on machines with more than 1024 processors.
pub fn allowed_cpus() -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU)
        .filter(|&number| set.is_set(number))
        .collect())
}

/// Returns the CPU time of the calling process so far.
pub fn process_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// A thread of the calling process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct OwnThread(Pid);

impl OwnThread {
    /// Returns the calling thread.
    pub fn current() -> Self {
        Self(gettid())
    }

    /// Returns its times so far; `None` once it has ended, or if the kernel keeps none.
    pub fn times(self) -> Option<ThreadTimes> {
        // Nanoseconds on a processor, then those in its queue ("sched-stats", the kernel's documentation).
        let statistics = fs::read_to_string(self.folder().join("schedstat")).ok()?;
        let mut fields = statistics.split_ascii_whitespace();
        let mut next = || Some(Duration::from_nanos(fields.next()?.parse().ok()?));
        Some(ThreadTimes {
            cpu: next()?,
            waited: next()?,
        })
    }

    /// Restricts it to one of the `allowed` processors; `None`: it may use all of them.
    ///
    /// # Errors
    /// If it has ended, or the processor does not exist any more.
    pub fn set_affinity(self, allowed: &[usize], only: Option<usize>) -> io::Result<()> {
        // The kernel would take the id of another process's thread, too.
        fs::metadata(self.folder())?;
        Ok(sched_setaffinity(Some(self.0), &cpu_set(allowed, only))?)
    }

    fn folder(self) -> PathBuf {
        format!("/proc/self/task/{}", self.0).into()
    }
}

/// Times of a thread since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ThreadTimes {
    /// On a processor.
    pub cpu: Duration,
    /// Ready to run, but without a processor.
    pub waited: Duration,
}

/// Reads the usage of every processor.
///
/// # Errors
/// Fails without `/proc`.
pub fn read_cpu_ticks() -> io::Result<Vec<CpuTicks>> {
    Ok(fs::read_to_string("/proc/stat")?
        .lines()
        .filter_map(parse_cpu_line)
        .collect())
}

/// Parses a line of proc_stat(5) that begins with `cpuN`. Only the first eight fields count: the
/// last two are already part of user and nice time.
fn parse_cpu_line(text: &str) -> Option<CpuTicks> {
    let (name, rest) = text.split_once(' ')?;
    let number = name.strip_prefix("cpu")?.parse().ok()?;
    let all: Vec<u64> = rest
        .split_ascii_whitespace()
        .take(8)
        .map(|field| field.parse().unwrap_or(0))
        .collect();
    let idle = all.iter().skip(3).take(2).sum();
    Some(CpuTicks {
        cpu: number,
        busy_ticks: all.iter().sum::<u64>() - idle,
        idle_ticks: idle,
    })
}

/// Lets the calling thread preempt every ordinary thread, like a kernel interrupt (`SCHED_FIFO`,
/// sched(7)).
///
/// For threads that emulate hardware and sleep most of the time. Threads that it starts are
/// ordinary.
///
/// # Errors
/// Fails without `CAP_SYS_NICE`, or in a cgroup without real-time budget.
pub fn prefer_this_thread() -> io::Result<()> {
    let lowest = libc::sched_param { sched_priority: 1 };
    // SAFETY: the call takes numbers, and a pointer that is valid for the kernel's read.
    let result = unsafe {
        libc::sched_setscheduler(
            0,
            libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK,
            &raw const lowest,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Sets whether the calling thread runs as a batch. A thread with a real-time policy keeps it. A failure
/// changes nothing: only speed depends on the policy.
pub fn set_own_batch_policy(is_batch: bool) {
    set_batch_policy(None, is_batch);
}

/// Moves the threads that a cgroup file lists from one processor to another; `None` stands for
/// `all` of them.
///
/// Threads that have set their own affinity stay. Returns the number of moved threads.
pub(crate) fn move_threads(
    file: &Path,
    all: &[usize],
    from: Option<usize>,
    to: Option<usize>,
) -> io::Result<usize> {
    let (old, new) = (cpu_set(all, from), cpu_set(all, to));
    let mut moved = 0;
    for _ in 0..MAX_MOVE_ROUNDS {
        let list = fs::read_to_string(file)?;
        let threads = list
            .lines()
            .filter_map(|line| Pid::from_raw(line.parse().ok()?));
        let round = threads
            .filter(|&thread| move_thread(thread, &old, &new, to.is_some()))
            .count();
        moved += round;
        if round == 0 {
            break;
        }
    }
    Ok(moved)
}

/// Moves one thread. A thread that has ended needs no move.
fn move_thread(thread: Pid, old: &CpuSet, new: &CpuSet, together: bool) -> bool {
    let ours = sched_getaffinity(Some(thread)).is_ok_and(|set| set == *old);
    let moved = ours && sched_setaffinity(Some(thread), new).is_ok();
    if moved {
        set_batch_policy(Some(thread), together);
    }
    moved
}

/// Switches between the two ordinary policies; a thread with any other policy keeps it. `None`: the
/// calling thread.
fn set_batch_policy(thread: Option<Pid>, is_batch: bool) {
    let thread = thread.map_or(0, |thread| thread.as_raw_nonzero().get());
    let (old, new) = if is_batch {
        (libc::SCHED_OTHER, libc::SCHED_BATCH)
    } else {
        (libc::SCHED_BATCH, libc::SCHED_OTHER)
    };
    // SAFETY: both calls take numbers, and a pointer that is valid for the kernel's read. Failing,
    // they change nothing.
    unsafe {
        if libc::sched_getscheduler(thread) == old {
            let priority = libc::sched_param { sched_priority: 0 }; // both policies require 0
            libc::sched_setscheduler(thread, new, &raw const priority);
        }
    }
}

fn cpu_set(all: &[usize], only: Option<usize>) -> CpuSet {
    let mut set = CpuSet::new();
    all.iter()
        .copied()
        .filter(|&number| only.is_none_or(|only| only == number))
        .for_each(|number| set.set(number));
    set
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn proc_stat_is_parsed_per_cpu() {
        let text =
            "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 1 2 3 40 5 6 7 8 9 10\ncpu11 1 0 0 2 0 0 0 0\nintr 5";
        let all: Vec<_> = text.lines().filter_map(parse_cpu_line).collect();
        assert_eq!(
            all,
            [
                CpuTicks {
                    cpu: 0,
                    busy_ticks: 27,
                    idle_ticks: 45
                },
                CpuTicks {
                    cpu: 11,
                    busy_ticks: 1,
                    idle_ticks: 2
                }
            ]
        );
        assert!(!read_cpu_ticks().unwrap().is_empty());
    }

    #[test]
    fn a_thread_switches_between_the_ordinary_policies() {
        // SAFETY: the call takes a number.
        let policy = || unsafe { libc::sched_getscheduler(0) };
        let before = policy();
        for (is_batch, expected) in [(true, libc::SCHED_BATCH), (false, libc::SCHED_OTHER)] {
            set_own_batch_policy(is_batch);
            assert_eq!(policy(), expected, "before: {before}");
        }
    }

    #[test]
    fn a_thread_stays_on_one_processor_until_it_may_use_all() {
        let all = allowed_cpus().unwrap();
        let thread = OwnThread::current();
        let own = || sched_getaffinity(None).unwrap();
        for only in [all.last().copied(), None] {
            thread.set_affinity(&all, only).unwrap();
            assert_eq!(own(), cpu_set(&all, only));
        }
        let before = thread.times().unwrap();
        nearpath_testkit::eventually_blocking("its time passes", || {
            thread.times().unwrap().cpu > before.cpu
        });
    }

    #[test]
    fn a_thread_that_has_ended_has_no_times_and_no_affinity() {
        let ended = std::thread::spawn(OwnThread::current).join().unwrap();
        // The kernel removes it a moment after the join.
        nearpath_testkit::eventually_blocking("it is gone", || ended.times().is_none());
        assert!(ended.set_affinity(&allowed_cpus().unwrap(), None).is_err());
    }

    #[test]
    fn threads_move_unless_they_set_their_own_affinity() {
        let all = allowed_cpus().unwrap();
        if all.len() < 2 {
            nearpath_testkit::skip!("it takes two processors");
        }
        let mut child = Command::new("cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut file = tempfile::NamedTempFile::new().unwrap();
        writeln!(file, "{}", child.id()).unwrap();
        let thread = Pid::from_child(&child);
        let place = |from, to| move_threads(file.path(), &all, from, to).unwrap();
        // SAFETY: it takes a number and returns one.
        let policy = || unsafe { libc::sched_getscheduler(thread.as_raw_nonzero().get()) };
        let there = || sched_getaffinity(Some(thread)).unwrap();

        assert_eq!(place(None, Some(all[1])), 1);
        assert_eq!(
            (there(), policy()),
            (cpu_set(&all, Some(all[1])), libc::SCHED_BATCH)
        );
        assert_eq!(
            place(None, Some(all[0])),
            0,
            "it is not where it would be moved from"
        );
        assert_eq!(place(Some(all[1]), None), 1);
        assert_eq!(
            (there(), policy()),
            (cpu_set(&all, None), libc::SCHED_OTHER)
        );
        // as the thread's own code may do
        sched_setaffinity(Some(thread), &cpu_set(&all, Some(all[0]))).unwrap();
        assert_eq!(place(None, Some(all[1])), 0);
        assert_eq!(there(), cpu_set(&all, Some(all[0])));
        drop(child.stdin.take());
        child.wait().unwrap();
    }
}
