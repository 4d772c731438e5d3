//! What processes are there, what they cost at rest: CPU time, wake-ups, memory; from `/proc`.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use crate::cpu;

/// What one process had spent at a moment.
#[derive(Debug, Clone, Copy, Default)]
struct Spent {
    cpu: Duration,
    wakes: u64,
}

/// Every process of some families at a moment.
pub(crate) struct Census {
    spent: BTreeMap<u32, Spent>,
}

/// What the processes of one name did between two moments.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Line {
    pub(crate) processes: u64,
    pub(crate) cpu: Duration,
    /// Times that a thread went to sleep by itself, and so was woken again.
    pub(crate) wakes: u64,
    /// Proportional set size, at the end.
    pub(crate) pss_kib: u64,
}

impl Census {
    /// Looks at `roots` and all their descendants.
    pub(crate) fn take(roots: &[u32]) -> Self {
        let spent = |pid: u32| Spent { cpu: cpu::own(pid), wakes: wakes(pid) };
        Self { spent: cpu::everybody(roots).into_iter().map(|pid| (pid, spent(pid))).collect() }
    }

    /// What each name did since. Processes that have ended are not counted: at rest there are none.
    pub(crate) fn until(&self, later: &Self) -> BTreeMap<String, Line> {
        let mut lines = BTreeMap::<String, Line>::new();
        for (pid, end) in &later.spent {
            let start = self.spent.get(pid).copied().unwrap_or_default();
            let line = lines.entry(name(*pid)).or_default();
            line.processes += 1;
            line.cpu += end.cpu.saturating_sub(start.cpu);
            line.wakes += end.wakes.saturating_sub(start.wakes);
            line.pss_kib += pss_kib(*pid);
        }
        lines
    }
}

/// `Pss` of proc_pid_smaps_rollup(5): private pages, and of shared ones the process's part.
fn pss_kib(pid: u32) -> u64 {
    field(&fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default(), "Pss:")
}

/// `voluntary_ctxt_switches` of all threads, proc_pid_status(5).
fn wakes(pid: u32) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let texts = tasks.filter_map(|task| fs::read_to_string(task.path().join("status")).ok());
    texts.map(|text| field(&text, "voluntary_ctxt_switches:")).sum()
}

/// The number on the line that begins with `key`; 0 without one.
fn field(text: &str, key: &str) -> u64 {
    let value = text.lines().find_map(|line| line.strip_prefix(key));
    value.and_then(|value| value.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// The name of the program that a process runs, at most 15 bytes of it.
pub(crate) fn name(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields() {
        let text = "Rss: 12 kB\nPss:    7 kB\nvoluntary_ctxt_switches:\t42\nnonvoluntary_ctxt_switches:\t9\n";
        assert_eq!((field(text, "Pss:"), field(text, "voluntary_ctxt_switches:"), field(text, "Swap:")), (7, 42, 0));
    }

    #[test]
    fn a_thread_that_slept_was_woken() {
        let me = std::process::id();
        let before = Census::take(&[me]);
        std::thread::sleep(Duration::from_millis(2)); // what is counted, not a wait for anything
        let line = before.until(&Census::take(&[me]));
        let all = line.values().fold(Line::default(), |all, one| Line { wakes: all.wakes + one.wakes, ..one.clone() });
        assert!(all.wakes >= 1 && all.pss_kib > 0, "{line:?}");
    }
}
