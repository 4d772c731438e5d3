//! Loads of functions, groups and processors in a round.

use std::collections::BTreeMap;

use nearpath_types::FunctionId;

use super::limits::{
    MAX_LONE_CALL_SECONDS, MAX_SHARED_SHARE, MAX_SHORT_CALL_SECONDS, MIN_BUSY_TO_LEAVE,
    MIN_COMPARED_CALLS, MIN_COMPARED_SHARE, MIN_FOREIGN_TO_LEAVE,
};

/// Load of a function since the last round.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct FunctionLoad {
    /// CPU time of its instances, in processors.
    pub used: f64,
    /// Answered calls, a second; 0 where they are not counted.
    pub calls: f64,
}

impl FunctionLoad {
    /// Returns whether there are calls, and each needs at most so much CPU time.
    fn has_calls_within(self, seconds: f64) -> bool {
        self.calls > 0.0 && self.used / self.calls <= seconds
    }
}

/// Load of a group since the last round.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GroupLoad {
    /// Its functions with running instances.
    pub functions: BTreeMap<FunctionId, FunctionLoad>,
    /// The group is a function without a chain.
    pub is_lone_function: bool,
}

impl GroupLoad {
    /// Returns the CPU time of all functions, in processors.
    pub fn used(&self) -> f64 {
        self.functions.values().map(|one| one.used).sum()
    }

    /// Returns whether all calls that matter cost so little that their wake-ups matter.
    pub(super) fn has_short_calls(&self) -> bool {
        let mut loaded = self
            .functions
            .values()
            .filter(|one| one.used >= MIN_COMPARED_SHARE);
        let max_seconds = match self.is_lone_function {
            true => MAX_LONE_CALL_SECONDS,
            false => MAX_SHORT_CALL_SECONDS,
        };
        loaded.all(|one| one.has_calls_within(max_seconds)) && self.used() >= MIN_COMPARED_SHARE
    }

    /// Returns the CPU time of a call of all functions, in seconds. Infinite without calls, NaN
    /// without calls and CPU time: no comparison with it holds.
    pub(super) fn call_seconds(&self) -> f64 {
        let calls: f64 = self.functions.values().map(|one| one.calls).sum();
        self.used() / calls
    }

    /// Returns, for each function with enough calls in an earlier round, by which factor its calls
    /// have changed since.
    pub(super) fn changes_since(&self, before: &Self) -> impl Iterator<Item = f64> {
        let compared = before
            .functions
            .iter()
            .filter(|(_, one)| one.calls >= MIN_COMPARED_CALLS);
        compared.map(|(id, one)| {
            self.functions
                .get(id)
                .map_or(0.0, |now| now.calls / one.calls)
        })
    }
}

/// Load of a processor since the last round.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CpuLoad {
    /// Number of the processor.
    pub cpu: usize,
    /// Busy share of the time: 0 to 1.
    pub busy: f64,
    /// CPU time of the platform's own process on it, as a share. It serves all groups.
    pub platform: f64,
    /// Groups on this processor. While a group decides, only the others count.
    pub groups: u32,
}

fn find_cpu(cpus: &[CpuLoad], cpu: usize) -> Option<&CpuLoad> {
    cpus.iter().find(|one| one.cpu == cpu)
}

/// Returns whether a group or its processor has no CPU time left. The platform's thread leaves a
/// full processor by itself, before the group does.
pub(super) fn is_full(cpu: usize, load: &GroupLoad, cpus: &[CpuLoad]) -> bool {
    let beside_platform = find_cpu(cpus, cpu).map_or(0.0, |one| one.busy - one.platform);
    load.used() >= MAX_SHARED_SHARE || beside_platform >= MIN_BUSY_TO_LEAVE
}

/// Returns whether other programs keep a group's processor busy.
///
/// Applies even if no processor is better: together the group waits behind others as a batch, while
/// spread it preempts them.
pub(super) fn has_foreign_load(cpu: usize, load: &GroupLoad, cpus: &[CpuLoad]) -> bool {
    find_cpu(cpus, cpu).is_some_and(|one| {
        one.busy >= MIN_BUSY_TO_LEAVE
            && one.busy - load.used() - one.platform >= MIN_FOREIGN_TO_LEAVE
    })
}

pub(super) fn busy_share(cpu: usize, cpus: &[CpuLoad]) -> f64 {
    find_cpu(cpus, cpu).map_or(0.0, |one| one.busy)
}

/// Returns the load of other programs on all processors, as a share of one.
pub(super) fn foreign_share(load: &GroupLoad, cpus: &[CpuLoad]) -> f64 {
    let beside: f64 = cpus.iter().map(|one| one.busy - one.platform).sum();
    (beside - load.used()) / cpus.len() as f64
}

/// Returns the processor with the fewest groups and the most idle time, of those up to `max_busy`.
pub(super) fn least_loaded(cpus: &[CpuLoad], max_busy: f64) -> Option<usize> {
    // A tenth per group separates equally idle processors.
    let load = |one: &CpuLoad| one.busy + 0.1 * f64::from(one.groups);
    let candidates = cpus.iter().filter(|one| one.busy <= max_busy);
    candidates
        .min_by(|a, b| load(a).total_cmp(&load(b)))
        .map(|one| one.cpu)
}

/// Counts a group on its processor.
pub(super) fn add_group(cpus: &mut [CpuLoad], cpu: Option<usize>) {
    if let Some(one) = cpus.iter_mut().find(|one| Some(one.cpu) == cpu) {
        one.groups += 1;
    }
}

/// Counts a group on its processor no longer.
pub(super) fn remove_group(cpus: &mut [CpuLoad], cpu: Option<usize>) {
    if let Some(one) = cpus.iter_mut().find(|one| Some(one.cpu) == cpu) {
        one.groups = one.groups.saturating_sub(1);
    }
}

/// Moves the load of a group between processors; `None`: all of them.
pub(super) fn move_load(cpus: &mut [CpuLoad], from: Option<usize>, to: Option<usize>, used: f64) {
    let share = used / cpus.len() as f64;
    for one in cpus {
        let part = |cpu: Option<usize>| match cpu {
            None => share,
            Some(cpu) if cpu == one.cpu => used,
            Some(_) => 0.0,
        };
        one.busy = (one.busy + part(to) - part(from)).max(0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loads(cpus: &[CpuLoad]) -> Vec<(f64, u32)> {
        cpus.iter().map(|one| (one.busy, one.groups)).collect()
    }

    #[test]
    fn a_placed_group_counts_for_the_next_one() {
        let mut cpus = [0, 1].map(|cpu| CpuLoad {
            cpu,
            busy: 0.25,
            platform: 0.0,
            groups: 0,
        });
        move_load(&mut cpus, None, Some(1), 0.5);
        add_group(&mut cpus, Some(1));
        assert_eq!(loads(&cpus), [(0.0, 0), (0.5, 1)]);
        remove_group(&mut cpus, Some(1));
        move_load(&mut cpus, Some(1), Some(0), 0.5);
        add_group(&mut cpus, None);
        assert_eq!(loads(&cpus), [(0.5, 0), (0.0, 0)]);
    }
}
