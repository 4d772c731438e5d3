//! Processors of the gateway's threads: measures them, asks each [`ThreadCpu`], and moves them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use nearpath_kernel::cores::{self, OwnThread};

use super::{ChainCpu, ChainLoad, CpuLoad, ThreadCpu};
use crate::gateway_threads::{GatewayThreads, ThreadChains};

/// Threads of the gateway that serve calls between functions.
#[derive(Default)]
pub(super) struct GatewayCpus {
    threads: GatewayThreads,
    placed: HashMap<OwnThread, PlacedThread>,
    /// CPU time of this process at the last measurement.
    process_time: Duration,
}

/// A thread at the last measurement.
#[derive(Default)]
struct PlacedThread {
    decision: ThreadCpu,
    placed_on: Option<usize>,
    cpu_time: Duration,
}

impl PlacedThread {
    /// Returns its CPU time since the last call.
    fn take_time(&mut self, thread: OwnThread) -> Duration {
        let now = thread.cpu_time().unwrap_or_default();
        let last = std::mem::replace(&mut self.cpu_time, now);
        now.saturating_sub(last)
    }
}

impl GatewayCpus {
    pub(super) fn new(threads: GatewayThreads) -> Self {
        Self {
            threads,
            ..Self::default()
        }
    }

    /// Returns the CPU time of this process on each of these processors since the last call, as far as
    /// it is known: threads that were not placed may have run on any.
    pub(super) fn take_times(&mut self, cpus: &[usize]) -> BTreeMap<usize, Duration> {
        let now = cores::process_time();
        let last = std::mem::replace(&mut self.process_time, now);
        let mut unplaced = now.saturating_sub(last);
        let mut times = BTreeMap::new();
        for (thread, placed) in &mut self.placed {
            let used = placed.take_time(*thread);
            if let Some(cpu) = placed.placed_on {
                unplaced = unplaced.saturating_sub(used);
                *times.entry(cpu).or_default() += used;
            }
        }
        for cpu in cpus {
            *times.entry(*cpu).or_default() += unplaced / cpus.len() as u32;
        }
        times
    }

    /// Decides on the processor of each thread, and moves it. At most one thread gets a processor:
    /// two would wait for each other there.
    pub(super) fn place_threads(
        &mut self,
        chain_cpus: &BTreeMap<String, ChainCpu>,
        loads: &BTreeMap<&str, ChainLoad>,
        cores: &[CpuLoad],
    ) {
        let all: Vec<_> = cores.iter().map(|core| core.cpu).collect();
        let serving = self.threads.list_chains();
        self.release_others(&serving, &all);
        let mut taken = HashSet::new();
        for ThreadChains { thread, domains } in serving {
            let shared = shared_cpu(&domains, chain_cpus).filter(|cpu| !taken.contains(cpu));
            let placed = self.placed.entry(thread).or_default();
            let to = placed
                .decision
                .decide_cpu(shared, &sum_loads(&domains, loads), cores);
            taken.extend(to);
            let from = std::mem::replace(&mut placed.placed_on, to);
            if from != to {
                thread.keep_on(&all, to);
                tracing::info!(?domains, from, to, "the processor of a gateway thread");
            }
        }
    }

    /// Lets threads that serve no chain any more run on all processors.
    fn release_others(&mut self, serving: &[ThreadChains], all: &[usize]) {
        self.placed.retain(|thread, placed| {
            let serves = serving.iter().any(|one| one.thread == *thread);
            if !serves && placed.placed_on.is_some() {
                thread.keep_on(all, None);
            }
            serves
        });
    }
}

/// Returns the processor that all these chains share, if they do.
fn shared_cpu(domains: &[String], chain_cpus: &BTreeMap<String, ChainCpu>) -> Option<usize> {
    let mut cpus = domains
        .iter()
        .map(|domain| chain_cpus.get(domain).and_then(ChainCpu::cpu));
    let first = cpus.next()??;
    cpus.all(|cpu| cpu == Some(first)).then_some(first)
}

fn sum_loads(domains: &[String], loads: &BTreeMap<&str, ChainLoad>) -> ChainLoad {
    let loads = domains.iter().filter_map(|domain| loads.get(&**domain));
    let functions = loads.flat_map(|load| &load.functions);
    ChainLoad {
        functions: functions.map(|(id, load)| (id.clone(), *load)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use nearpath_types::policy::ChainPlacement;
    use nearpath_types::{Eip, InnerListener};

    use super::*;

    fn idle_core(cpu: usize) -> CpuLoad {
        CpuLoad {
            cpu,
            busy: 0.0,
            platform: 0.0,
            chains: 0,
        }
    }

    /// A chain on the only idle processor.
    fn chain_on(cpu: usize) -> ChainCpu {
        let mut chain = ChainCpu::default();
        let busy_core = CpuLoad {
            busy: 1.0,
            ..idle_core(1 - cpu)
        };
        chain.apply_policy(ChainPlacement::Core, &[busy_core, idle_core(cpu)]);
        chain
    }

    #[test]
    fn a_thread_follows_its_chains_if_they_share_a_processor() {
        let chain_cpus = [("a", 0), ("b", 1), ("c", 1)]
            .map(|(domain, cpu)| (domain.to_owned(), chain_on(cpu)))
            .into();
        let shared = |domains: &[&str]| {
            let domains: Vec<_> = domains.iter().map(|one| (*one).to_owned()).collect();
            shared_cpu(&domains, &chain_cpus)
        };
        assert_eq!(shared(&["a"]), Some(0));
        assert_eq!(shared(&["b", "c"]), Some(1));
        assert_eq!(shared(&["a", "b"]), None);
        assert_eq!(shared(&["b", "spread"]), None);
    }

    #[test]
    fn a_thread_without_chains_runs_on_all_processors_again() {
        let all = cores::allowed_cpus().unwrap();
        let [first, second, ..] = all[..] else {
            nearpath_testkit::skip!("it takes two processors");
        };
        let threads = GatewayThreads::default();
        let _received = threads.add_current();
        let listener = InnerListener {
            socket: TcpListener::bind("127.0.0.1:0").unwrap(),
            caller: Eip([10, 62, 0, 2].into()),
        };
        let served = threads.serve(listener, Some("a".to_owned())).unwrap();
        let mut gateway = GatewayCpus::new(threads);
        let mut chain = ChainCpu::default();
        let cores = [first, second].map(idle_core);
        chain.apply_policy(ChainPlacement::Core, &cores);
        let chain_cpus = [("a".to_owned(), chain)].into();
        let allowed = || cores::allowed_cpus().unwrap(); // of this thread
        gateway.place_threads(&chain_cpus, &BTreeMap::new(), &cores);
        assert_eq!(allowed(), [first]);
        let times = gateway.take_times(&[first, second]);
        assert!(times[&first] >= times[&second]);
        drop(served);
        gateway.place_threads(&chain_cpus, &BTreeMap::new(), &cores);
        assert_eq!(allowed(), [first, second]);
    }
}
