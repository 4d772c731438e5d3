//! Usage of functions between two measurements: CPU time and answered calls.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use nearpath_types::{FunctionId, InstanceId};

use super::group::{GroupInstances, GroupMember, InstancesByGroup, PlacementGroup};
use super::load::{FunctionLoad, GroupLoad};
use crate::config::CallCounter;
use crate::domain_stats::DomainStats;

/// Usage of a function between two measurements.
pub(super) struct FunctionUsage {
    cpu_time: Duration,
    calls: u64,
}

impl FunctionUsage {
    fn per_second(self, seconds: f64) -> FunctionLoad {
        FunctionLoad {
            used: self.cpu_time.as_secs_f64() / seconds,
            calls: self.calls as f64 / seconds,
        }
    }
}

/// Usage of a group's functions with running instances.
pub(super) type GroupUsage = BTreeMap<FunctionId, FunctionUsage>;

/// Returns the load of a group from the usage of its functions.
pub(super) fn load_of(group: &PlacementGroup, functions: GroupUsage, seconds: f64) -> GroupLoad {
    let functions = functions.into_iter();
    GroupLoad {
        is_lone_function: matches!(group, PlacementGroup::Function(_)),
        functions: functions
            .map(|(id, usage)| (id, usage.per_second(seconds)))
            .collect(),
    }
}

/// Counters of calls, and the last measurement.
#[derive(Default)]
pub(super) struct UsageMeter {
    gateway_calls: CallCounter,
    memory_calls: DomainStats,
    last: Measurement,
}

/// Counts so far.
#[derive(Default)]
struct Measurement {
    calls: HashMap<FunctionId, u64>,
    cpu_times: HashMap<InstanceId, Duration>,
}

impl UsageMeter {
    /// Creates a meter without measurements. The arguments count calls: those of the gateway, and
    /// those through memory.
    pub(super) fn new(gateway_calls: CallCounter, memory_calls: DomainStats) -> Self {
        Self {
            gateway_calls,
            memory_calls,
            last: Measurement::default(),
        }
    }

    /// Returns what each function has used since the last measurement. Forgets those without
    /// running instances.
    pub(super) fn measure<'a>(
        &mut self,
        groups: &'a InstancesByGroup,
    ) -> BTreeMap<&'a PlacementGroup, GroupUsage> {
        let before = std::mem::take(&mut self.last);
        groups
            .iter()
            .map(|(group, instances)| (group, self.measure_group(&before, group, instances)))
            .collect()
    }

    /// Measures the functions of a group, and returns the difference to an earlier measurement.
    fn measure_group(
        &mut self,
        before: &Measurement,
        group: &PlacementGroup,
        instances: &GroupInstances,
    ) -> GroupUsage {
        let functions = instances.functions.iter().map(|(id, members)| {
            let calls = self.count_calls(group, id);
            self.last.calls.insert(id.clone(), calls);
            let usage = FunctionUsage {
                cpu_time: self.used_time(before, members),
                // The count of a function that did not run then is that of its whole history.
                calls: before
                    .calls
                    .get(id)
                    .map_or(0, |last| calls.saturating_sub(*last)),
            };
            (id.clone(), usage)
        });
        functions.collect()
    }

    fn count_calls(&self, group: &PlacementGroup, id: &FunctionId) -> u64 {
        let in_memory = match group {
            PlacementGroup::Chain(domain) => self.memory_calls.answered_calls(domain, id),
            PlacementGroup::Function(_) => 0,
        };
        self.gateway_calls.count(id) + in_memory
    }

    /// Returns the CPU time of a function since an earlier measurement. New instances count from
    /// the next one on.
    fn used_time(&mut self, before: &Measurement, members: &[GroupMember]) -> Duration {
        let mut sum = Duration::ZERO;
        for (id, process) in members {
            let Some(now) = process.cpu_time() else {
                continue;
            };
            let last = before.cpu_times.get(id).copied();
            sum += last.map_or(Duration::ZERO, |last| now.saturating_sub(last));
            self.last.cpu_times.insert(*id, now);
        }
        sum
    }
}
