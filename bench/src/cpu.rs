//! CPU time of processes and all their descendants, from `/proc`.
//!
//! The time of running threads comes from `/proc/PID/task/TID/schedstat` in nanoseconds (kernel:
//! Documentation/scheduler/sched-stats.rst). The time of ended children comes from `cutime` and
//! `cstime` in `/proc/PID/stat` (proc_pid_stat(5)), in ticks. `utime` and `stime` there include
//! ended threads: their time counts in ticks, if it is more than the rounding of ticks.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::time::Duration;

/// `/proc` counts in USER_HZ, which is 100 on every architecture that nearpath runs on (kernel: asm-generic/param.h).
const TICK_NS: u64 = 10_000_000;
/// Difference between nanoseconds and ticks of a process that rounding explains: a tick for each of
/// `utime` and `stime`.
const ROUNDING_NS: u64 = 2 * TICK_NS;

/// Returns the CPU time of processes without their descendants: a cheap read that disturbs the
/// measurement little.
pub(crate) fn processes_cpu(pids: &[u32]) -> Duration {
    Duration::from_nanos(pids.iter().map(|pid| threads_ns(*pid)).sum())
}

/// Returns the CPU time of a process without its descendants, of ended threads too, in ticks.
pub(crate) fn process_time(pid: u32) -> io::Result<Duration> {
    let fields = read_stat(pid).ok_or(io::ErrorKind::NotFound)?;
    Ok(Duration::from_nanos(ticks_ns(&fields, OWN_TIME)))
}

/// Returns the CPU time of some threads of this process.
pub(crate) fn threads_cpu(threads: &[u32]) -> Duration {
    let spent = |thread: &u32| {
        // A thread that has ended has no file any more; it counts as zero.
        let text = fs::read_to_string(format!("/proc/self/task/{thread}/schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    };
    Duration::from_nanos(threads.iter().filter_map(spent).sum())
}

/// Returns the time for which threads of `roots` and their descendants waited for a processor (the
/// second field of schedstat). A slow request without such a delay waited for a wake-up that never
/// came.
pub(crate) fn run_queue_delay(roots: &[u32]) -> Duration {
    let nanos = process_tree(roots)
        .into_iter()
        .flat_map(|pid| read_schedstat(pid, 1))
        .map(|(_, ns)| ns)
        .sum();
    Duration::from_nanos(nanos)
}

/// CPU time of processes and descendants by thread, at one time.
///
/// Threads may end between two snapshots, such as idle threads of a runtime or a thread per
/// connection. A difference of two sums would subtract their time from that of the others.
#[derive(Debug, Default)]
pub(crate) struct CpuSnapshot {
    /// Time by process and thread.
    threads: BTreeMap<(u32, u32), u64>,
    /// Time of a process with its ended threads, in ticks.
    processes: BTreeMap<u32, u64>,
    /// Time of ended children that were waited for, by parent.
    ended: BTreeMap<u32, u64>,
}

impl CpuSnapshot {
    /// Reads `roots` and their descendants.
    pub(crate) fn read_now(roots: &[u32]) -> Self {
        let mut moment = Self::default();
        // One walk of /proc for all roots: a process that forks meanwhile is found in the next
        // snapshot, as new.
        for pid in process_tree(roots) {
            moment
                .threads
                .extend(thread_times(pid).map(|(tid, ns)| ((pid, tid), ns)));
            let fields = read_stat(pid).unwrap_or_default();
            moment.processes.insert(pid, ticks_ns(&fields, OWN_TIME));
            // Every live process has an entry here, also with zero ticks: `spent_until`
            // recognises live processes by it.
            moment.ended.insert(pid, ticks_ns(&fields, CHILDREN_TIME));
        }
        moment
    }

    /// Returns the CPU time spent until a later snapshot.
    pub(crate) fn spent_until(&self, later: &Self) -> Duration {
        let own: Duration = later
            .ended
            .keys()
            .map(|pid| self.process_spent(*pid, later))
            .sum();
        let ended: u64 = later
            .ended
            .iter()
            .map(|(pid, ns)| grown(self.ended.get(pid), *ns))
            .sum();
        // Processes that ended meanwhile are in their parents' count with all their life.
        let gone = self
            .threads
            .iter()
            .filter(|((pid, _), _)| !later.ended.contains_key(pid));
        let before: u64 = gone.map(|(_, ns)| ns).sum();
        // What those processes had spent before the first snapshot is in `ended` too, so it is
        // subtracted.
        own + Duration::from_nanos(ended.saturating_sub(before))
    }

    /// Returns the CPU time of a process until a later snapshot, with that of its ended threads.
    pub(crate) fn process_spent(&self, pid: u32, later: &Self) -> Duration {
        let mine = later.threads.iter().filter(|((of, _), _)| *of == pid);
        let threads: u64 = mine
            .map(|(thread, ns)| grown(self.threads.get(thread), *ns))
            .sum();
        let all = grown(
            self.processes.get(&pid),
            later.processes.get(&pid).copied().unwrap_or(0),
        );
        // The nanoseconds count unless threads have ended: ticks are coarse.
        Duration::from_nanos(match all > threads + ROUNDING_NS {
            true => all,
            false => threads,
        })
    }
}

/// Returns the growth of a count since `before`.
fn grown(before: Option<&u64>, after: u64) -> u64 {
    // saturating: a process id can be reused, then the counts begin anew.
    after.saturating_sub(before.copied().unwrap_or(0))
}

/// Returns `roots` and all running descendants.
pub(crate) fn process_tree(roots: &[u32]) -> BTreeSet<u32> {
    descendants_of(roots, &read_parents())
}

/// Returns `roots` and all descendants.
fn descendants_of(roots: &[u32], parents: &BTreeMap<u32, u32>) -> BTreeSet<u32> {
    // Rounds until nothing is added: /proc is in no order that puts parents first.
    let mut family: BTreeSet<u32> = roots.iter().copied().collect();
    loop {
        let children = parents
            .iter()
            .filter(|(_, parent)| family.contains(parent))
            .map(|(child, _)| *child);
        let grown: BTreeSet<u32> = children.chain(family.iter().copied()).collect();
        if grown.len() == family.len() {
            return family;
        }
        family = grown;
    }
}

/// Reads the parent of every process.
fn read_parents() -> BTreeMap<u32, u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid| Some((pid, read_stat(pid)?.get(1)?.parse().ok()?)))
        .collect()
}

/// Reads the fields of `/proc/PID/stat` from the third one (state) on.
fn read_stat(pid: u32) -> Option<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(
        after_name(&text)?
            .split_whitespace()
            .map(str::to_owned)
            .collect(),
    )
}

/// Skips the name of a process, which may have blanks and parentheses.
fn after_name(stat: &str) -> Option<&str> {
    // The last parenthesis: everything behind the name is numbers and the state (proc_pid_stat(5)).
    stat.rsplit_once(')').map(|(_, rest)| rest)
}

fn threads_ns(pid: u32) -> u64 {
    thread_times(pid).map(|(_, ns)| ns).sum()
}

/// Returns the running threads of a process with their times.
fn thread_times(pid: u32) -> impl Iterator<Item = (u32, u64)> {
    read_schedstat(pid, 0)
}

/// Reads a field of schedstat for each running thread of a process.
fn read_schedstat(pid: u32, field: usize) -> impl Iterator<Item = (u32, u64)> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten();
    tasks.filter_map(move |task| {
        let tid = task.file_name().to_str()?.parse().ok()?;
        let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
        Some((tid, text.split_whitespace().nth(field)?.parse().ok()?))
    })
}

/// Positions of `utime` and `stime` in [`read_stat`]: fields 14 and 15 of proc_pid_stat(5).
const OWN_TIME: [usize; 2] = [11, 12];
/// Positions of `cutime` and `cstime`: fields 16 and 17.
const CHILDREN_TIME: [usize; 2] = [13, 14];

/// Returns the sum of two counts of ticks, in nanoseconds.
fn ticks_ns(fields: &[String], positions: [usize; 2]) -> u64 {
    let ticks = positions.map(|at| fields.get(at).and_then(|text| text.parse::<u64>().ok()));
    ticks.into_iter().flatten().sum::<u64>() * TICK_NS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_parentheses() {
        assert_eq!(after_name("42 (a) b (c)) S 7 42"), Some(" S 7 42"));
        assert_eq!(after_name("nonsense"), None);
    }

    #[test]
    fn descendants_of_descendants() {
        let parents = BTreeMap::from([(2, 1), (3, 2), (4, 3), (9, 8)]);
        assert_eq!(descendants_of(&[2], &parents), BTreeSet::from([2, 3, 4]));
    }

    #[test]
    fn an_ended_thread_does_not_reduce_the_time_of_others() {
        let moment = |threads: &[((u32, u32), u64)], ended: &[(u32, u64)]| CpuSnapshot {
            threads: threads.iter().copied().collect(),
            processes: BTreeMap::new(),
            ended: ended.iter().copied().collect(),
        };
        let before = moment(
            &[((1, 1), 10), ((1, 2), 500), ((3, 3), 70)],
            &[(1, 0), (3, 0)],
        );
        // Thread 2 has ended, and process 3, which spent 5 more; thread 4 is new.
        let later = moment(&[((1, 1), 12), ((1, 4), 1)], &[(1, 75)]);
        assert_eq!(before.spent_until(&later), Duration::from_nanos(2 + 1 + 5));
        assert_eq!(before.process_spent(1, &later), Duration::from_nanos(3));
    }

    #[test]
    fn ended_threads_count_in_ticks() {
        let moment = |threads: &[((u32, u32), u64)], ticks: u64| CpuSnapshot {
            threads: threads.iter().copied().collect(),
            processes: BTreeMap::from([(1, ticks * TICK_NS)]),
            ended: BTreeMap::from([(1, 0)]),
        };
        let before = moment(&[((1, 1), 10), ((1, 2), 500)], 4);
        for (ticks, spent) in [(6, 2), (7, 3 * TICK_NS)] {
            let later = moment(&[((1, 1), 12)], ticks);
            let spent = Duration::from_nanos(spent);
            assert_eq!(before.process_spent(1, &later), spent);
            assert_eq!(before.spent_until(&later), spent);
        }
    }

    #[test]
    fn own_cpu_time_is_counted() {
        let now = || CpuSnapshot::read_now(&[std::process::id()]);
        let before = now();
        let mut sum = 0_u64;
        while before.spent_until(&now()).is_zero() {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert_eq!(
            CpuSnapshot::read_now(&[]).spent_until(&CpuSnapshot::read_now(&[])),
            Duration::ZERO
        );
    }
}
