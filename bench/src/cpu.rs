//! CPU time of processes and all their descendants, from `/proc`.
//!
//! Time of living threads comes from `/proc/PID/task/TID/schedstat` in nanoseconds (kernel:
//! Documentation/scheduler/sched-stats.rst), time of children that ended and were waited for from `cutime` and `cstime` in
//! `/proc/PID/stat` (proc_pid_stat(5)), which counts in ticks. Time of threads that ended is lost: what is measured here
//! keeps its threads.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::Duration;

/// `/proc` counts in USER_HZ, which is 100 on every architecture that nearpath runs on (kernel: asm-generic/param.h).
const TICK_NS: u64 = 10_000_000;

/// CPU time of processes without their descendants: cheap, so that looking is not what is measured.
pub(crate) fn alone(pids: &[u32]) -> Duration {
    Duration::from_nanos(pids.iter().map(|pid| threads_ns(*pid)).sum())
}

/// CPU time of some threads of this process.
pub(crate) fn of_threads(threads: &[u32]) -> Duration {
    let spent = |thread: &u32| {
        let text = fs::read_to_string(format!("/proc/self/task/{thread}/schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    };
    Duration::from_nanos(threads.iter().filter_map(spent).sum())
}

/// How long the living threads of `roots` and their descendants have been ready to run while something else ran (the second field of
/// schedstat). A request that took long while nobody waited for a processor, waited for a wake-up that never came.
pub(crate) fn held_up(roots: &[u32]) -> Duration {
    let nanos = everybody(roots)
        .into_iter()
        .flat_map(|pid| schedstat(pid, 1))
        .map(|(_, ns)| ns)
        .sum();
    Duration::from_nanos(nanos)
}

/// CPU time of some families, thread by thread, at a moment.
///
/// Between two moments threads may end, such as those of a runtime that had nothing to do: what they had spent before must
/// not be missing from what the others spent since, as it would be in a difference of two sums.
#[derive(Debug, Default)]
pub(crate) struct Moment {
    /// By process and thread.
    threads: BTreeMap<(u32, u32), u64>,
    /// Of children that ended and were waited for, by the parent.
    ended: BTreeMap<u32, u64>,
}

impl Moment {
    /// Looks at `roots` and their descendants.
    pub(crate) fn now(roots: &[u32]) -> Self {
        let mut moment = Self::default();
        for pid in everybody(roots) {
            moment
                .threads
                .extend(threads(pid).map(|(tid, ns)| ((pid, tid), ns)));
            moment.ended.insert(pid, children_ticks(pid) * TICK_NS);
        }
        moment
    }

    /// What was spent from here to a later moment.
    pub(crate) fn until(&self, later: &Self) -> Duration {
        let grown =
            |before: Option<&u64>, after: u64| after.saturating_sub(before.copied().unwrap_or(0));
        let threads: u64 = later
            .threads
            .iter()
            .map(|(thread, ns)| grown(self.threads.get(thread), *ns))
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
        Duration::from_nanos(threads + ended.saturating_sub(before))
    }

    /// What one process's threads spent from here to a later moment.
    pub(crate) fn of(&self, pid: u32, later: &Self) -> Duration {
        let mine = later.threads.iter().filter(|((of, _), _)| *of == pid);
        Duration::from_nanos(
            mine.map(|(thread, ns)| ns - self.threads.get(thread).unwrap_or(&0).min(ns))
                .sum(),
        )
    }
}

/// `roots` and everybody alive who descends from them.
pub(crate) fn everybody(roots: &[u32]) -> BTreeSet<u32> {
    family(roots, &parents())
}

/// `roots` and everybody who descends from them.
fn family(roots: &[u32], parents: &BTreeMap<u32, u32>) -> BTreeSet<u32> {
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

/// The parent of every process.
fn parents() -> BTreeMap<u32, u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid| Some((pid, stat(pid)?.get(1)?.parse().ok()?)))
        .collect()
}

/// The fields of `/proc/PID/stat` from the third one (state) on.
fn stat(pid: u32) -> Option<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(
        after_name(&text)?
            .split_whitespace()
            .map(str::to_owned)
            .collect(),
    )
}

/// A process may have blanks and parentheses in its name.
fn after_name(stat: &str) -> Option<&str> {
    stat.rsplit_once(')').map(|(_, rest)| rest)
}

fn threads_ns(pid: u32) -> u64 {
    threads(pid).map(|(_, ns)| ns).sum()
}

/// The living threads of a process and what each has spent.
fn threads(pid: u32) -> impl Iterator<Item = (u32, u64)> {
    schedstat(pid, 0)
}

/// One field of schedstat of each living thread of a process.
fn schedstat(pid: u32, field: usize) -> impl Iterator<Item = (u32, u64)> {
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

fn children_ticks(pid: u32) -> u64 {
    let fields = stat(pid).unwrap_or_default();
    fields
        .iter()
        .skip(13)
        .take(2)
        .filter_map(|field| field.parse::<u64>().ok())
        .sum()
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
        assert_eq!(family(&[2], &parents), BTreeSet::from([2, 3, 4]));
    }

    #[test]
    fn who_ends_takes_nothing_from_what_others_spend() {
        let moment = |threads: &[((u32, u32), u64)], ended: &[(u32, u64)]| Moment {
            threads: threads.iter().copied().collect(),
            ended: ended.iter().copied().collect(),
        };
        let before = moment(
            &[((1, 1), 10), ((1, 2), 500), ((3, 3), 70)],
            &[(1, 0), (3, 0)],
        );
        // Thread 2 has ended, and process 3, which spent 5 more; thread 4 is new.
        let later = moment(&[((1, 1), 12), ((1, 4), 1)], &[(1, 75)]);
        assert_eq!(before.until(&later), Duration::from_nanos(2 + 1 + 5));
        assert_eq!(before.of(1, &later), Duration::from_nanos(3));
    }

    #[test]
    fn own_work_is_seen() {
        let now = || Moment::now(&[std::process::id()]);
        let before = now();
        let mut sum = 0_u64;
        while before.until(&now()).is_zero() {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert_eq!(Moment::now(&[]).until(&Moment::now(&[])), Duration::ZERO);
    }
}
