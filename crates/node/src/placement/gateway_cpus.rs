//! Processors of the gateway's threads: measures them, asks each [`ThreadCpu`], and moves them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use nearpath_kernel::cores::{self, OwnThread, ThreadTimes};

use super::group::PlacementGroup;
use super::group_cpu::GroupCpu;
use super::load::{CpuLoad, GroupLoad};
use super::thread_cpu::{ThreadCpu, ThreadLoad};
use crate::gateway_threads::{GatewayThreads, ThreadChains};

/// Threads of the gateway that serve calls between functions.
#[derive(Default)]
pub(super) struct GatewayCpus {
    threads: GatewayThreads,
    records: HashMap<OwnThread, ThreadRecord>,
    /// CPU time of this process at the last measurement.
    process_time: Duration,
}

/// A thread at the last measurement.
#[derive(Default)]
struct ThreadRecord {
    decision: ThreadCpu,
    /// Its only processor.
    cpu: Option<usize>,
    /// Security domain of the chain that it follows.
    followed: Option<String>,
    times: ThreadTimes,
    /// Times since the measurement before.
    spent: ThreadTimes,
}

impl ThreadRecord {
    fn new(thread: OwnThread) -> Self {
        Self {
            times: thread.times().unwrap_or_default(),
            ..Self::default()
        }
    }

    fn measure(&mut self, thread: OwnThread) {
        let now = thread.times().unwrap_or(self.times);
        let last = std::mem::replace(&mut self.times, now);
        self.spent = ThreadTimes {
            cpu: now.cpu.saturating_sub(last.cpu),
            waited: now.waited.saturating_sub(last.waited),
        };
    }

    fn load(&self, seconds: f64) -> ThreadLoad {
        ThreadLoad {
            used: self.spent.cpu.as_secs_f64() / seconds,
            waited: self.spent.waited.as_secs_f64() / seconds,
        }
    }

    fn move_to(&mut self, thread: OwnThread, allowed: &[usize], cpu: Option<usize>) {
        if self.cpu == cpu || thread.set_affinity(allowed, cpu).is_err() {
            return;
        }
        tracing::info!(
            from = self.cpu,
            to = cpu,
            domain = self.followed,
            "the processor of a gateway thread"
        );
        self.cpu = cpu;
    }
}

/// A chain that a thread may follow.
struct FollowedChain {
    domain: String,
    cpu: usize,
    /// CPU time of its functions since the last round, in processors.
    used: f64,
}

impl GatewayCpus {
    pub(super) fn new(threads: GatewayThreads) -> Self {
        Self {
            threads,
            ..Self::default()
        }
    }

    /// Measures the threads. Returns the CPU time of this process on each of these processors since the
    /// last call, as far as it is known: threads without a processor of their own may have run on any.
    pub(super) fn measure(&mut self, cpus: &[usize]) -> BTreeMap<usize, Duration> {
        for ThreadChains { thread, .. } in self.threads.list_chains() {
            let record = || ThreadRecord::new(thread);
            self.records.entry(thread).or_insert_with(record);
        }
        let now = cores::process_time();
        let last = std::mem::replace(&mut self.process_time, now);
        let mut elsewhere = now.saturating_sub(last);
        let mut times = BTreeMap::new();
        for (thread, record) in &mut self.records {
            record.measure(*thread);
            if let Some(cpu) = record.cpu {
                elsewhere = elsewhere.saturating_sub(record.spent.cpu);
                *times.entry(cpu).or_default() += record.spent.cpu;
            }
        }
        for cpu in cpus {
            *times.entry(*cpu).or_default() += elsewhere / cpus.len() as u32;
        }
        times
    }

    /// Decides on the processor of each thread, and moves it. At most one thread follows to a
    /// processor: two would wait for each other there. `seconds` have passed since the last round.
    pub(super) fn place_threads(
        &mut self,
        group_cpus: &BTreeMap<PlacementGroup, GroupCpu>,
        loads: &BTreeMap<&PlacementGroup, GroupLoad>,
        cpus: &[CpuLoad],
        seconds: f64,
    ) {
        let allowed: Vec<_> = cpus.iter().map(|one| one.cpu).collect();
        let serving = self.threads.list_chains();
        self.release_others(&serving, &allowed);
        let follow = |one: ThreadChains| {
            let last = self.records.get(&one.thread)?.followed.as_deref();
            let chain = chain_to_follow(&one.domains, last, group_cpus, loads);
            Some((one.thread, chain))
        };
        let mut threads: Vec<_> = serving.into_iter().filter_map(follow).collect();
        let used = |chain: &Option<FollowedChain>| chain.as_ref().map_or(0.0, |chain| chain.used);
        threads.sort_by(|(_, a), (_, b)| used(b).total_cmp(&used(a)));
        let mut taken = HashSet::new();
        for (thread, chain) in threads {
            let Some(record) = self.records.get_mut(&thread) else {
                continue;
            };
            // Also while the thread is not there: another one must not take turns with it.
            let chain = chain.filter(|chain| taken.insert(chain.cpu));
            let chain_cpu = chain.as_ref().map(|chain| chain.cpu);
            record.followed = chain.map(|chain| chain.domain);
            let load = record.load(seconds);
            let cpu = record.decision.decide_cpu(chain_cpu, load, cpus);
            record.move_to(thread, &allowed, cpu);
        }
    }

    /// Lets threads that serve no chain any more run on all processors.
    fn release_others(&mut self, serving: &[ThreadChains], allowed: &[usize]) {
        self.records.retain(|thread, record| {
            let serves = serving.iter().any(|one| one.thread == *thread);
            if !serves {
                record.move_to(*thread, allowed, None);
            }
            serves
        });
    }
}

/// Returns the placed chain that has used the most CPU time; the last one, if none has used any. Where
/// nothing measures instances, there is none.
fn chain_to_follow(
    domains: &[String],
    last: Option<&str>,
    group_cpus: &BTreeMap<PlacementGroup, GroupCpu>,
    loads: &BTreeMap<&PlacementGroup, GroupLoad>,
) -> Option<FollowedChain> {
    let placed = domains.iter().filter_map(|domain| {
        let group = PlacementGroup::Chain(domain.clone());
        Some(FollowedChain {
            domain: domain.clone(),
            cpu: group_cpus.get(&group)?.cpu()?,
            used: loads.get(&group).map_or(0.0, GroupLoad::used),
        })
    });
    placed
        .filter(|chain| chain.used > 0.0 || Some(&*chain.domain) == last)
        .max_by(|a, b| a.used.total_cmp(&b.used))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use nearpath_types::policy::ChainPlacement;
    use nearpath_types::{Eip, InnerListener};

    use super::super::load::FunctionLoad;
    use super::*;

    fn idle_cpu(cpu: usize) -> CpuLoad {
        CpuLoad {
            cpu,
            busy: 0.0,
            platform: 0.0,
            groups: 0,
        }
    }

    /// A chain on the only idle processor.
    fn chain_on(cpu: usize) -> GroupCpu {
        let mut chain = GroupCpu::default();
        let busy_cpu = CpuLoad {
            busy: 1.0,
            ..idle_cpu(1 - cpu)
        };
        chain.apply_policy(ChainPlacement::Core, &[busy_cpu, idle_cpu(cpu)]);
        chain
    }

    fn group(domain: &str) -> PlacementGroup {
        PlacementGroup::Chain(domain.to_owned())
    }

    fn used(function: &str, used: f64) -> GroupLoad {
        let load = FunctionLoad { used, calls: 1.0 };
        GroupLoad {
            functions: [(function.parse().unwrap(), load)].into(),
            is_lone_function: false,
        }
    }

    #[test]
    fn a_thread_follows_the_chain_that_uses_most() {
        let group_cpus: BTreeMap<_, _> = [("a", 0), ("b", 1)]
            .map(|(domain, cpu)| (group(domain), chain_on(cpu)))
            .into();
        let followed = |a: f64, b: f64, last: Option<&str>| {
            let groups = ["a", "b"].map(group);
            let loads = [(&groups[0], used("f", a)), (&groups[1], used("g", b))].into();
            let domains = ["a", "b", "spread"].map(str::to_owned);
            let chain = chain_to_follow(&domains, last, &group_cpus, &loads);
            chain.map(|chain| (chain.domain, chain.cpu))
        };
        assert_eq!(followed(0.1, 0.2, Some("a")), Some(("b".to_owned(), 1)));
        assert_eq!(followed(0.0, 0.0, Some("a")), Some(("a".to_owned(), 0)));
        assert_eq!(followed(0.0, 0.0, Some("spread")), None);
        assert_eq!(followed(0.0, 0.0, None), None);
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
        let mut chain = GroupCpu::default();
        let cpus = [first, second].map(idle_cpu);
        chain.apply_policy(ChainPlacement::Core, &cpus);
        let group_cpus = [(group("a"), chain)].into();
        let loaded = group("a");
        let loads = [(&loaded, used("f", 0.1))].into();
        let allowed = || cores::allowed_cpus().unwrap(); // of this thread
        gateway.measure(&[first, second]);
        gateway.place_threads(&group_cpus, &loads, &cpus, 1.0);
        assert_eq!(allowed(), [first]);
        let before = OwnThread::current().times().unwrap().cpu;
        let spent = || OwnThread::current().times().unwrap().cpu - before;
        nearpath_testkit::eventually_blocking("it has run", || spent().as_millis() > 50);
        let times = gateway.measure(&[first, second]);
        assert!(times[&first] > times[&second]);
        drop(served);
        gateway.place_threads(&group_cpus, &loads, &cpus, 1.0);
        assert_eq!(allowed(), [first, second]);
    }
}
