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

/// CPU time spent so far by `roots` and their descendants.
pub(crate) fn spent(roots: &[u32]) -> Duration {
    let family = family(roots, &parents());
    let nanos = family.iter().map(|pid| threads_ns(*pid) + children_ticks(*pid) * TICK_NS).sum();
    Duration::from_nanos(nanos)
}

/// CPU time of this process alone.
pub(crate) fn own() -> Duration {
    Duration::from_nanos(threads_ns(std::process::id()))
}

/// `roots` and everybody who descends from them.
fn family(roots: &[u32], parents: &BTreeMap<u32, u32>) -> BTreeSet<u32> {
    let mut family: BTreeSet<u32> = roots.iter().copied().collect();
    loop {
        let children = parents.iter().filter(|(_, parent)| family.contains(parent)).map(|(child, _)| *child);
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
    pids.filter_map(|pid| Some((pid, stat(pid)?.get(1)?.parse().ok()?))).collect()
}

/// The fields of `/proc/PID/stat` from the third one (state) on.
fn stat(pid: u32) -> Option<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(after_name(&text)?.split_whitespace().map(str::to_owned).collect())
}

/// A process may have blanks and parentheses in its name.
fn after_name(stat: &str) -> Option<&str> {
    stat.rsplit_once(')').map(|(_, rest)| rest)
}

fn threads_ns(pid: u32) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let texts = tasks.filter_map(|task| fs::read_to_string(task.path().join("schedstat")).ok());
    texts.filter_map(|text| text.split_whitespace().next()?.parse::<u64>().ok()).sum()
}

fn children_ticks(pid: u32) -> u64 {
    let fields = stat(pid).unwrap_or_default();
    fields.iter().skip(13).take(2).filter_map(|field| field.parse::<u64>().ok()).sum()
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
    fn own_work_is_seen() {
        let before = spent(&[std::process::id()]);
        let mut sum = 0_u64;
        while spent(&[std::process::id()]) <= before {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert_eq!(spent(&[]), Duration::ZERO);
    }
}
