//! Processes and their idle cost: CPU time, wake-ups and memory, from `/proc`.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use crate::cpu::{self, CpuSnapshot};

/// All processes below some roots, at one time.
pub(crate) struct ProcessCensus {
    cpu: CpuSnapshot,
    /// Voluntary context switches, by process and thread.
    wakes: BTreeMap<u32, BTreeMap<String, u64>>,
}

/// Cost of all processes of one name between two times.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct ProcessCost {
    pub(crate) processes: u64,
    pub(crate) cpu: Duration,
    /// Wake-ups: voluntary context switches of the threads.
    pub(crate) wakes: u64,
    /// Proportional set size, at the end.
    pub(crate) pss_kib: u64,
}

impl ProcessCensus {
    /// Reads `roots` and all their descendants.
    pub(crate) fn take_census(roots: &[u32]) -> Self {
        // Both censuses read wake-ups before CPU time, so the delay between the two readings
        // cancels.
        let wakes = cpu::process_tree(roots)
            .into_iter()
            .map(|pid| (pid, count_wakeups(pid)))
            .collect();
        Self {
            cpu: CpuSnapshot::read_now(roots),
            wakes,
        }
    }

    /// Returns the cost by name since this census. Ended processes are not counted: idle processes
    /// do not end.
    pub(crate) fn usage_until(&self, later: &Self) -> BTreeMap<String, ProcessCost> {
        let mut lines = BTreeMap::<String, ProcessCost>::new();
        for (pid, end) in &later.wakes {
            let start = self.wakes.get(pid);
            // A thread that started since the first census has no entry there: its whole count is
            // new.
            let before = |thread| {
                start
                    .and_then(|start| start.get(thread))
                    .copied()
                    .unwrap_or(0)
            };
            let line = lines.entry(process_name(*pid)).or_default();
            line.processes += 1;
            line.cpu += self.cpu.process_spent(*pid, &later.cpu);
            line.wakes += end
                .iter()
                // A thread id can be reused with a smaller count; a wrong zero is better than an
                // overflow.
                .map(|(thread, times)| times.saturating_sub(before(thread)))
                .sum::<u64>();
            // After both censuses: smaps_rollup walks the page tables, and that cost must not be in
            // the window.
            line.pss_kib += pss_kib(*pid);
        }
        lines
    }
}

/// `Pss` of proc_pid_smaps_rollup(5): private pages, and of shared ones the process's part.
fn pss_kib(pid: u32) -> u64 {
    parse_field(
        &fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default(),
        "Pss:",
    )
}

/// `voluntary_ctxt_switches` of each thread, proc_pid_status(5).
fn count_wakeups(pid: u32) -> BTreeMap<String, u64> {
    // `/proc/PID/status` itself has the counts of the main thread only, so every task is read.
    let tasks = fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten();
    let read = |task: fs::DirEntry| {
        let text = fs::read_to_string(task.path().join("status")).ok()?;
        Some((
            task.file_name().into_string().ok()?,
            parse_field(&text, "voluntary_ctxt_switches:"),
        ))
    };
    tasks.filter_map(read).collect()
}

/// Returns the number on the line that begins with `key`, or 0.
fn parse_field(text: &str, key: &str) -> u64 {
    let value = text.lines().find_map(|line| line.strip_prefix(key));
    value
        .and_then(|value| value.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

/// Returns the name of a process's program, at most 15 bytes.
pub(crate) fn process_name(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm"))
        .unwrap_or_default()
        .trim()
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields() {
        let text = "Rss: 12 kB\nPss:    7 kB\nvoluntary_ctxt_switches:\t42\nnonvoluntary_ctxt_switches:\t9\n";
        assert_eq!(
            (
                parse_field(text, "Pss:"),
                parse_field(text, "voluntary_ctxt_switches:"),
                parse_field(text, "Swap:")
            ),
            (7, 42, 0)
        );
    }

    #[test]
    fn a_sleep_counts_as_a_wakeup() {
        let me = std::process::id();
        let before = ProcessCensus::take_census(&[me]);
        std::thread::sleep(Duration::from_millis(2)); // what is counted, not a wait for anything
        let line = before.usage_until(&ProcessCensus::take_census(&[me]));
        let all = line
            .values()
            .fold(ProcessCost::default(), |all, one| ProcessCost {
                wakes: all.wakes + one.wakes,
                ..one.clone()
            });
        assert!(all.wakes >= 1 && all.pss_kib > 0, "{line:?}");
    }
}
