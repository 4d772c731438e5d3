//! The driver of the placement: measures, asks each chain's [`ChainCpu`], and moves its instances.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nearpath_kernel::cores::{self, CpuTicks};
use nearpath_types::policy::ChainPlacement;
use nearpath_types::{FunctionId, InstanceId};

use super::gateway_cpus::GatewayCpus;
use super::{ChainCpu, ChainLoad, CpuLoad, FunctionLoad};
use crate::config::CallCounter;
use crate::domain_stats::DomainStats;
use crate::gateway_threads::GatewayThreads;
use crate::machine::InstanceProcess;

/// Interval of measurements. A chain that outgrows its processor waits up to this time.
pub(crate) const PLACEMENT_INTERVAL: Duration = Duration::from_secs(2);

/// A running instance, and its process.
pub(crate) type ChainMember = (InstanceId, Arc<dyn InstanceProcess>);

/// The running instances of a chain.
pub(crate) struct ChainThreads {
    pub(crate) placement: ChainPlacement,
    /// Functions with running instances.
    pub(crate) functions: BTreeMap<FunctionId, Vec<ChainMember>>,
}

impl ChainThreads {
    /// Returns the effective placement: a single function has nothing to share a processor with.
    fn placement(&self) -> ChainPlacement {
        match self.placement {
            ChainPlacement::Auto if self.functions.len() < 2 => ChainPlacement::Spread,
            placement => placement,
        }
    }

    fn members(&self) -> impl Iterator<Item = &ChainMember> {
        self.functions.values().flatten()
    }
}

type ThreadsByChain = BTreeMap<String, ChainThreads>;

/// Places the chains of a node. Clones share their state.
#[derive(Clone)]
pub(crate) struct Placer(Arc<Mutex<PlacementState>>);

impl Placer {
    /// Creates a placer without placements. The first two arguments count calls: those of the gateway,
    /// and those through memory.
    pub(crate) fn new(
        gateway_calls: CallCounter,
        memory_calls: DomainStats,
        gateway_threads: GatewayThreads,
    ) -> Self {
        let allowed = cores::allowed_cpus().unwrap_or_default();
        Self(Arc::new(Mutex::new(PlacementState {
            allowed_cpus: allowed,
            gateway_calls,
            memory_calls,
            gateway: GatewayCpus::new(gateway_threads),
            ..PlacementState::default()
        })))
    }

    /// Measures and decides anew, on a blocking thread because it reads files.
    pub(crate) fn measure_and_place(&self, chains: ThreadsByChain) {
        self.run_blocking(move |plan| plan.measure_and_place(&chains));
    }

    /// Moves new instances to the processors of their chains.
    pub(crate) fn apply_policies(&self, chains: ThreadsByChain) {
        self.run_blocking(move |plan| plan.apply_policies(&chains));
    }

    fn run_blocking(&self, what: impl FnOnce(&mut PlacementState) + Send + 'static) {
        let plan = Arc::clone(&self.0);
        tokio::task::spawn_blocking(move || {
            what(&mut plan.lock().unwrap_or_else(PoisonError::into_inner))
        });
    }
}

#[derive(Default)]
struct PlacementState {
    /// Processors that the node may use.
    allowed_cpus: Vec<usize>,
    chain_cpus: BTreeMap<String, ChainCpu>,
    gateway_calls: CallCounter,
    memory_calls: DomainStats,
    /// Calls of each function at the last measurement.
    last_calls: HashMap<FunctionId, u64>,
    gateway: GatewayCpus,
    instances: HashMap<InstanceId, PlacedInstance>,
    /// Processor usage at the last measurement, and load since then.
    last_ticks: Option<(Instant, Vec<CpuTicks>)>,
    busy_shares: Vec<(usize, f64)>,
    /// CPU time of this process on each processor since the last measurement, as a share.
    platform_shares: BTreeMap<usize, f64>,
}

/// Returns the load of a chain from the usage of its functions.
fn load_of(functions: BTreeMap<FunctionId, FunctionUsage>, seconds: f64) -> ChainLoad {
    let functions = functions.into_iter();
    ChainLoad {
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
    fn measure_and_place(&mut self, chains: &ThreadsByChain) {
        let Ok(ticks) = cores::read_cpu_ticks() else {
            return;
        };
        let now = Instant::now();
        let before = self.last_ticks.replace((now, ticks));
        let since = before.map(|(at, old)| (now.duration_since(at), old));
        self.retain_living(chains);
        // Also without an earlier measurement: it is the base of the next one.
        let usage = self.measure_usage(chains);
        let platform_times = self.gateway.measure(&self.allowed_cpus);
        // The first measurement has no interval yet.
        let Some((elapsed, old)) = since else {
            return self.apply_policies(chains);
        };
        self.busy_shares = self.busy_since(&old);
        // Two calls in quick succession must not divide by zero.
        let seconds = elapsed.as_secs_f64().max(1e-3);
        self.platform_shares = platform_times
            .into_iter()
            .map(|(cpu, time)| (cpu, time.as_secs_f64() / seconds))
            .collect();
        let usage = usage
            .into_iter()
            .map(|functions| load_of(functions, seconds));
        let loads: BTreeMap<_, _> = chains.keys().map(String::as_str).zip(usage).collect();
        self.decide_cpus(chains, &loads);
        self.move_instances(chains);
        self.gateway
            .place_threads(&self.chain_cpus, &loads, &self.cpu_loads(""), seconds);
    }

    fn decide_cpus(&mut self, chains: &ThreadsByChain, loads: &BTreeMap<&str, ChainLoad>) {
        for (domain, chain) in chains {
            let load = &loads[domain.as_str()];
            let cores = self.cpu_loads(domain);
            let chain_cpu = self.chain_cpus.entry(domain.clone()).or_default();
            let before = chain_cpu.cpu();
            let after = chain_cpu.decide_cpu(chain.placement(), load, &cores);
            if before != after {
                tracing::info!(
                    domain,
                    from = before,
                    to = after,
                    used = load.used(),
                    "the chain's processor"
                );
            }
        }
    }

    /// Applies only what needs no measurement.
    fn apply_policies(&mut self, chains: &ThreadsByChain) {
        for (domain, chain) in chains {
            let cores = self.cpu_loads(domain);
            let chain_cpu = self.chain_cpus.entry(domain.clone()).or_default();
            let before = chain_cpu.cpu();
            let after = chain_cpu.apply_policy(chain.placement(), &cores);
            if before != after {
                tracing::info!(
                    domain,
                    from = before,
                    to = after,
                    "the chain's processor changed by policy"
                );
            }
        }
        self.move_instances(chains);
    }

    fn retain_living(&mut self, chains: &ThreadsByChain) {
        self.chain_cpus
            .retain(|domain, _| chains.contains_key(domain));
        let members = chains.values().flat_map(ChainThreads::members);
        let alive: HashSet<_> = members.map(|(id, _)| *id).collect();
        self.instances.retain(|id, _| alive.contains(id));
    }

    /// Returns what each function of each chain has used since the last measurement.
    fn measure_usage(
        &mut self,
        chains: &ThreadsByChain,
    ) -> Vec<BTreeMap<FunctionId, FunctionUsage>> {
        let last_calls = std::mem::take(&mut self.last_calls);
        let usage_of = |(domain, chain): (&String, &ChainThreads)| {
            let functions = chain.functions.iter().map(|(id, members)| {
                let calls =
                    self.gateway_calls.count(id) + self.memory_calls.answered_calls(domain, id);
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
        chains.iter().map(usage_of).collect()
    }

    /// Returns the CPU time of a function since the last measurement. New instances count from the
    /// next one on.
    fn used_time(&mut self, members: &[ChainMember]) -> Duration {
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

    /// Returns the processor loads as a chain sees them.
    fn cpu_loads(&self, domain: &str) -> Vec<CpuLoad> {
        let busy = |number| {
            self.busy_shares
                .iter()
                .find(|(other, _)| *other == number)
                .map_or(0.0, |(_, busy)| *busy)
        };
        let others = || {
            self.chain_cpus
                .iter()
                .filter(|(other, _)| *other != domain)
                .filter_map(|(_, chain_cpu)| chain_cpu.cpu())
        };
        let chains_on = |number| others().filter(|other| *other == number).count() as u32;
        self.allowed_cpus
            .iter()
            .map(|&number| CpuLoad {
                cpu: number,
                busy: busy(number),
                platform: self.platform_shares.get(&number).copied().unwrap_or(0.0),
                chains: chains_on(number),
            })
            .collect()
    }

    /// Moves instances to their chain's processor. An ended one needs no move.
    fn move_instances(&mut self, chains: &ThreadsByChain) {
        for (domain, chain) in chains {
            let to = self.chain_cpus.get(domain).and_then(ChainCpu::cpu);
            for (id, process) in chain.members() {
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
