//! The driver of the placement: measures, asks each chain's [`ChainCpu`], and moves its instances.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nearpath_kernel::cores::{self, CpuTicks};
use nearpath_types::{FunctionId, InstanceId};

use super::gateway_cpus::GatewayCpus;
use super::group::{GroupInstances, GroupMember, InstancesByGroup, PlacementGroup};
use super::{ChainCpu, ChainLoad, CpuLoad, FunctionLoad};
use crate::config::CallCounter;
use crate::domain_stats::DomainStats;
use crate::gateway_threads::GatewayThreads;

/// Interval of measurements. A chain that outgrows its processor waits up to this time.
pub(crate) const PLACEMENT_INTERVAL: Duration = Duration::from_secs(2);

/// Places chains and functions of a node. Clones share their state.
#[derive(Clone)]
pub(crate) struct Placer {
    state: Arc<Mutex<PlacementState>>,
    /// Number of jobs so far.
    jobs: Arc<AtomicU64>,
    has_choice: bool,
}

impl Placer {
    /// Creates a placer without placements. The first two arguments count calls: those of the gateway,
    /// and those through memory.
    pub(crate) fn new(
        gateway_calls: CallCounter,
        memory_calls: DomainStats,
        gateway_threads: GatewayThreads,
    ) -> Self {
        let allowed = cores::allowed_cpus().unwrap_or_default();
        let has_choice = allowed.len() > 1;
        let state = Arc::new(Mutex::new(PlacementState {
            allowed_cpus: allowed,
            gateway_calls,
            memory_calls,
            gateway: GatewayCpus::new(gateway_threads),
            ..PlacementState::default()
        }));
        Self {
            state,
            jobs: Arc::default(),
            has_choice,
        }
    }

    /// Measures and decides anew, on a blocking thread because it reads files.
    pub(crate) fn measure_and_place(&self, groups: InstancesByGroup) {
        self.run_blocking(move |state, is_latest| {
            // An older snapshot lacks instances that are placed already, and would forget them.
            if is_latest {
                state.measure_and_place(&groups);
            }
        });
    }

    /// Moves new instances to the processors of their groups.
    pub(crate) fn apply_policies(&self, groups: InstancesByGroup) {
        self.run_blocking(move |state, _| state.apply_policies(&groups));
    }

    /// Returns whether there is more than one processor to choose from.
    pub(crate) fn has_choice(&self) -> bool {
        self.has_choice
    }

    /// Runs a job. It learns whether no later one has run yet: they may overtake each other.
    fn run_blocking(&self, job: impl FnOnce(&mut PlacementState, bool) + Send + 'static) {
        let state = Arc::clone(&self.state);
        let number = self.jobs.fetch_add(1, Ordering::Relaxed);
        tokio::task::spawn_blocking(move || {
            let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
            let is_latest = number >= state.next_job;
            state.next_job = state.next_job.max(number + 1);
            job(&mut state, is_latest);
        });
    }
}

#[derive(Default)]
struct PlacementState {
    /// Number after that of the latest job that has run.
    next_job: u64,
    /// Processors that the node may use.
    allowed_cpus: Vec<usize>,
    chain_cpus: BTreeMap<PlacementGroup, ChainCpu>,
    gateway_calls: CallCounter,
    memory_calls: DomainStats,
    /// Calls of each function at the last measurement.
    last_calls: HashMap<FunctionId, u64>,
    gateway: GatewayCpus,
    instances: HashMap<InstanceId, PlacedInstance>,
    /// Processor usage at the last measurement.
    last_ticks: Option<(Instant, Vec<CpuTicks>)>,
    /// Load of the processors since then.
    busy_shares: Vec<(usize, f64)>,
    /// CPU time of this process on each processor since the last measurement, as a share.
    platform_shares: BTreeMap<usize, f64>,
}

/// Adds a group to its processor, or takes it away.
fn count_group(cores: &mut [CpuLoad], cpu: Option<usize>, is_there: bool) {
    let core = cores.iter_mut().find(|core| Some(core.cpu) == cpu);
    if let Some(core) = core {
        core.chains = match is_there {
            true => core.chains + 1,
            false => core.chains.saturating_sub(1),
        };
    }
}

/// Moves the load of a group between processors; `None`: all of them.
fn move_load(cores: &mut [CpuLoad], from: Option<usize>, to: Option<usize>, used: f64) {
    let share = used / cores.len() as f64;
    for core in cores {
        let part = |cpu: Option<usize>| match cpu {
            None => share,
            Some(cpu) if cpu == core.cpu => used,
            Some(_) => 0.0,
        };
        core.busy = (core.busy + part(to) - part(from)).max(0.0);
    }
}

/// Returns the load of a chain from the usage of its functions.
fn load_of(
    group: &PlacementGroup,
    functions: BTreeMap<FunctionId, FunctionUsage>,
    seconds: f64,
) -> ChainLoad {
    let functions = functions.into_iter();
    ChainLoad {
        is_alone: matches!(group, PlacementGroup::Function(_)),
        functions: functions
            .map(|(id, usage)| (id, usage.per_second(seconds)))
            .collect(),
    }
}

/// Usage of a function between two measurements.
struct FunctionUsage {
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

/// An instance at the last measurement.
#[derive(Default)]
struct PlacedInstance {
    cpu_time: Option<Duration>,
    placed_on: Option<usize>,
}

impl PlacementState {
    fn measure_and_place(&mut self, groups: &InstancesByGroup) {
        let Ok(ticks) = cores::read_cpu_ticks() else {
            return;
        };
        let now = Instant::now();
        let before = self.last_ticks.replace((now, ticks));
        let since = before.map(|(at, old)| (now.duration_since(at), old));
        self.retain_living(groups);
        // Also without an earlier measurement: it is the base of the next one.
        let usage = self.measure_usage(groups);
        let platform_times = self.gateway.measure(&self.allowed_cpus);
        // The first measurement has no interval yet.
        let Some((elapsed, old)) = since else {
            return self.apply_policies(groups);
        };
        self.busy_shares = self.busy_since(&old);
        // Two calls in quick succession must not divide by zero.
        let seconds = elapsed.as_secs_f64().max(1e-3);
        self.platform_shares = platform_times
            .into_iter()
            .map(|(cpu, time)| (cpu, time.as_secs_f64() / seconds))
            .collect();
        let loads: BTreeMap<_, _> = groups
            .keys()
            .zip(usage)
            .map(|(group, functions)| (group, load_of(group, functions, seconds)))
            .collect();
        self.decide_cpus(groups, &loads);
        self.move_instances(groups);
        self.gateway
            .place_threads(&self.chain_cpus, &loads, &self.cpu_loads(), seconds);
    }

    fn decide_cpus(
        &mut self,
        groups: &InstancesByGroup,
        loads: &BTreeMap<&PlacementGroup, ChainLoad>,
    ) {
        let mut cores = self.cpu_loads();
        for (group, instances) in groups {
            let (load, placement) = (&loads[group], instances.placement(group));
            let chain_cpu = self.chain_cpus.entry(group.clone()).or_default();
            let before = chain_cpu.cpu();
            count_group(&mut cores, before, false);
            let after = chain_cpu.decide_cpu(placement, load, &cores);
            count_group(&mut cores, after, true);
            if before != after {
                // The next group must not take the same processor for free.
                move_load(&mut cores, before, after, load.used());
                tracing::info!(
                    domain = %group,
                    from = before,
                    to = after,
                    used = load.used(),
                    "the chain's processor"
                );
            }
        }
    }

    /// Applies only what needs no measurement.
    fn apply_policies(&mut self, groups: &InstancesByGroup) {
        let mut cores = self.cpu_loads();
        for (group, instances) in groups {
            let chain_cpu = self.chain_cpus.entry(group.clone()).or_default();
            let before = chain_cpu.cpu();
            count_group(&mut cores, before, false);
            let after = chain_cpu.apply_policy(instances.placement(group), &cores);
            count_group(&mut cores, after, true);
            if before != after {
                tracing::info!(
                    domain = %group,
                    from = before,
                    to = after,
                    "the chain's processor changed by policy"
                );
            }
        }
        self.move_instances(groups);
    }

    fn retain_living(&mut self, groups: &InstancesByGroup) {
        self.chain_cpus
            .retain(|group, _| groups.contains_key(group));
        let members = groups.values().flat_map(GroupInstances::members);
        let alive: HashSet<_> = members.map(|(id, _)| *id).collect();
        self.instances.retain(|id, _| alive.contains(id));
    }

    /// Returns what each function of each group has used since the last measurement.
    fn measure_usage(
        &mut self,
        groups: &InstancesByGroup,
    ) -> Vec<BTreeMap<FunctionId, FunctionUsage>> {
        let last_calls = std::mem::take(&mut self.last_calls);
        let usage_of = |(group, instances): (&PlacementGroup, &GroupInstances)| {
            let functions = instances.functions.iter().map(|(id, members)| {
                let calls = self.count_calls(group, id);
                self.last_calls.insert(id.clone(), calls);
                let usage = FunctionUsage {
                    cpu_time: self.used_time(members),
                    // The count of a function that did not run then is that of its whole history.
                    calls: last_calls
                        .get(id)
                        .map_or(0, |last| calls.saturating_sub(*last)),
                };
                (id.clone(), usage)
            });
            functions.collect()
        };
        groups.iter().map(usage_of).collect()
    }

    fn count_calls(&self, group: &PlacementGroup, id: &FunctionId) -> u64 {
        let in_memory = match group {
            PlacementGroup::Chain(domain) => self.memory_calls.answered_calls(domain, id),
            PlacementGroup::Function(_) => 0,
        };
        self.gateway_calls.count(id) + in_memory
    }

    /// Returns the CPU time of a function since the last measurement. New instances count from the
    /// next one on.
    fn used_time(&mut self, members: &[GroupMember]) -> Duration {
        let mut sum = Duration::ZERO;
        for (id, process) in members {
            let instance = self.instances.entry(*id).or_default();
            let now = process.cpu_time();
            sum += now
                .zip(instance.cpu_time)
                .map_or(Duration::ZERO, |(now, last)| now.saturating_sub(last));
            instance.cpu_time = now;
        }
        sum
    }

    fn busy_since(&self, old: &[CpuTicks]) -> Vec<(usize, f64)> {
        let now = self.last_ticks.iter().flat_map(|(_, ticks)| ticks);
        let both = now.filter_map(|now| Some((now, old.iter().find(|old| old.cpu == now.cpu)?)));
        let share = |(now, old): (&CpuTicks, &CpuTicks)| {
            let (busy, idle) = (
                now.busy_ticks.saturating_sub(old.busy_ticks),
                now.idle_ticks.saturating_sub(old.idle_ticks),
            );
            (now.cpu, busy as f64 / (busy + idle).max(1) as f64)
        };
        both.map(share).collect()
    }

    /// Returns the loads of the processors, with all groups.
    fn cpu_loads(&self) -> Vec<CpuLoad> {
        let busy: BTreeMap<_, _> = self.busy_shares.iter().copied().collect();
        let mut cores: Vec<_> = self
            .allowed_cpus
            .iter()
            .map(|cpu| CpuLoad {
                cpu: *cpu,
                busy: busy.get(cpu).copied().unwrap_or(0.0),
                platform: self.platform_shares.get(cpu).copied().unwrap_or(0.0),
                chains: 0,
            })
            .collect();
        for chain_cpu in self.chain_cpus.values() {
            count_group(&mut cores, chain_cpu.cpu(), true);
        }
        cores
    }

    /// Moves instances to their group's processor. An ended one needs no move.
    fn move_instances(&mut self, groups: &InstancesByGroup) {
        for (group, instances) in groups {
            let to = self.chain_cpus.get(group).and_then(ChainCpu::cpu);
            for (id, process) in instances.members() {
                let instance = self.instances.entry(*id).or_default();
                if instance.placed_on != to {
                    // An error means that the instance has ended meanwhile.
                    let _ = process.move_threads(&self.allowed_cpus, instance.placed_on, to);
                    instance.placed_on = to;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loads(cores: &[CpuLoad]) -> Vec<(f64, u32)> {
        cores.iter().map(|core| (core.busy, core.chains)).collect()
    }

    #[test]
    fn a_placed_group_counts_for_the_next_one() {
        let mut cores = [0, 1].map(|cpu| CpuLoad {
            cpu,
            busy: 0.25,
            platform: 0.0,
            chains: 0,
        });
        move_load(&mut cores, None, Some(1), 0.5);
        count_group(&mut cores, Some(1), true);
        assert_eq!(loads(&cores), [(0.0, 0), (0.5, 1)]);
        count_group(&mut cores, Some(1), false);
        move_load(&mut cores, Some(1), Some(0), 0.5);
        count_group(&mut cores, None, true);
        assert_eq!(loads(&cores), [(0.5, 0), (0.0, 0)]);
    }
}
