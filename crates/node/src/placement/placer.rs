//! The driver of the placement: measures, asks each group's [`GroupCpu`], and moves its instances.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nearpath_kernel::cores::{self, CpuTicks};
use nearpath_types::InstanceId;

use super::gateway_cpus::GatewayCpus;
use super::group::{GroupInstances, InstancesByGroup, PlacementGroup};
use super::group_cpu::GroupCpu;
use super::load::{CpuLoad, GroupLoad, add_group, move_load, remove_group};
use super::usage::{UsageMeter, load_of};
use crate::config::CallCounter;
use crate::domain_stats::DomainStats;
use crate::gateway_threads::GatewayThreads;

/// Interval of measurements. A group that outgrows its processor waits up to this time.
pub(crate) const PLACEMENT_INTERVAL: Duration = Duration::from_secs(2);

/// Places the groups of a node. Clones share their state.
#[derive(Clone)]
pub(crate) struct Placer {
    state: Arc<Mutex<PlacementState>>,
    /// Number of jobs so far.
    jobs: Arc<AtomicU64>,
    has_choice: bool,
}

impl Placer {
    /// Creates a placer without placements. The first two arguments count calls: those of the
    /// gateway, and those through memory.
    pub(crate) fn new(
        gateway_calls: CallCounter,
        memory_calls: DomainStats,
        gateway_threads: GatewayThreads,
    ) -> Self {
        let allowed = cores::allowed_cpus().unwrap_or_default();
        let has_choice = allowed.len() > 1;
        let state = Arc::new(Mutex::new(PlacementState {
            allowed_cpus: allowed,
            usage: UsageMeter::new(gateway_calls, memory_calls),
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
        // Of some groups only, and without forgetting others: an older job does no harm.
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

/// State behind the jobs: the decisions, and the measurements that they need.
#[derive(Default)]
struct PlacementState {
    /// Number after that of the latest job that has run.
    next_job: u64,
    /// Processors that the node may use.
    allowed_cpus: Vec<usize>,
    group_cpus: BTreeMap<PlacementGroup, GroupCpu>,
    usage: UsageMeter,
    gateway: GatewayCpus,
    /// Processor of each instance since its last move; `None`: all.
    placed_on: HashMap<InstanceId, Option<usize>>,
    /// Processor usage at the last measurement.
    last_ticks: Option<(Instant, Vec<CpuTicks>)>,
    /// Busy share of each processor in the interval that ended at `last_ticks`.
    busy_shares: BTreeMap<usize, f64>,
    /// CPU time of this process on each processor in that interval, as a share.
    platform_shares: BTreeMap<usize, f64>,
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
        let usage = self.usage.measure(groups);
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
        let loads = usage
            .into_iter()
            .map(|(group, functions)| (group, load_of(group, functions, seconds)))
            .collect();
        self.choose_cpus(groups, Some(&loads));
        self.move_instances(groups);
        self.gateway
            .place_threads(&self.group_cpus, &loads, &self.cpu_loads(), seconds);
    }

    /// Applies only what needs no measurement.
    fn apply_policies(&mut self, groups: &InstancesByGroup) {
        self.choose_cpus(groups, None);
        self.move_instances(groups);
    }

    /// Decides on the processor of each group by its load; without loads, by its policy only.
    fn choose_cpus(
        &mut self,
        groups: &InstancesByGroup,
        loads: Option<&BTreeMap<&PlacementGroup, GroupLoad>>,
    ) {
        let mut cpus = self.cpu_loads();
        for (group, instances) in groups {
            let load = loads.map(|loads| &loads[group]);
            let placement = instances.placement(group);
            let group_cpu = self.group_cpus.entry(group.clone()).or_default();
            let from = group_cpu.cpu();
            remove_group(&mut cpus, from);
            let to = match load {
                Some(load) => group_cpu.decide_cpu(placement, load, &cpus),
                None => group_cpu.apply_policy(placement, &cpus),
            };
            add_group(&mut cpus, to);
            if from != to {
                // The next group must not take the same processor for free. Without loads, there is
                // one group, or no interval yet: the number of groups is enough for `core`.
                if let Some(load) = load {
                    move_load(&mut cpus, from, to, load.used());
                }
                log_move(group, from, to, load);
            }
        }
    }

    fn retain_living(&mut self, groups: &InstancesByGroup) {
        self.group_cpus
            .retain(|group, _| groups.contains_key(group));
        let members = groups.values().flat_map(GroupInstances::members);
        let alive: HashSet<_> = members.map(|(id, _)| *id).collect();
        self.placed_on.retain(|id, _| alive.contains(id));
    }

    fn busy_since(&self, old: &[CpuTicks]) -> BTreeMap<usize, f64> {
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
        let load_of_cpu = |cpu: &usize| CpuLoad {
            cpu: *cpu,
            busy: self.busy_shares.get(cpu).copied().unwrap_or(0.0),
            platform: self.platform_shares.get(cpu).copied().unwrap_or(0.0),
            groups: 0,
        };
        let mut cpus: Vec<_> = self.allowed_cpus.iter().map(load_of_cpu).collect();
        for group_cpu in self.group_cpus.values() {
            add_group(&mut cpus, group_cpu.cpu());
        }
        cpus
    }

    /// Moves instances to their group's processor. An ended one needs no move.
    fn move_instances(&mut self, groups: &InstancesByGroup) {
        for (group, instances) in groups {
            let to = self.group_cpus.get(group).and_then(GroupCpu::cpu);
            for (id, process) in instances.members() {
                let placed_on = self.placed_on.entry(*id).or_default();
                if *placed_on != to {
                    // An error means that the instance has ended meanwhile.
                    let _ = process.move_threads(&self.allowed_cpus, *placed_on, to);
                    *placed_on = to;
                }
            }
        }
    }
}

fn log_move(
    group: &PlacementGroup,
    from: Option<usize>,
    to: Option<usize>,
    load: Option<&GroupLoad>,
) {
    match load.map(GroupLoad::used) {
        Some(used) => tracing::info!(group = %group, from, to, used, "the group's processor"),
        None => tracing::info!(
            group = %group,
            from,
            to,
            "the group's processor changed by policy"
        ),
    }
}
