//! Counters of calls that bypass gateway and shared memory, as watchdogs report them. Read on
//! demand.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nearpath_domain::node_side::CallCounts;
use nearpath_types::chain_status::{EdgeStatus, LatencyBucket};
use nearpath_types::frames::{CallTally, LATENCY_BUCKETS};
use nearpath_types::{FunctionId, InstanceAddr, InstanceId};

use crate::remote_paths::RemoteCalls;

/// Caller and callee.
type EdgeKey = (FunctionId, FunctionId);

/// Counters of all direct calls. Clones share their state.
#[derive(Debug, Clone, Default)]
pub(crate) struct DirectStats {
    edges: Arc<Mutex<BTreeMap<EdgeKey, DirectEdge>>>,
    /// Instances that each instance can call directly.
    direct_paths: Arc<Mutex<BTreeMap<InstanceId, BTreeSet<InstanceAddr>>>>,
    /// Instances of other nodes that each instance can call, and its calls of them.
    remote: Arc<Mutex<BTreeMap<InstanceId, RemoteCallees>>>,
}

/// Callees of one instance on other nodes.
#[derive(Debug)]
struct RemoteCallees {
    caller: FunctionId,
    peers: RemoteCalls,
    /// Time of the last report of calls, by callee.
    last_calls: BTreeMap<FunctionId, Instant>,
}

/// Time without a call after which an edge to another node is not shown as direct.
const DIRECT_AGE: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
struct DirectEdge {
    chain: Option<String>,
    ended: u64,
    failed: u64,
    micros: u64,
    latency: [u64; LATENCY_BUCKETS],
    open_calls: BTreeMap<InstanceId, u32>,
}

/// An instance that reports its calls. Calls that are open when it goes count as failed.
#[derive(Debug)]
pub(crate) struct CallReporter {
    stats: DirectStats,
    caller: FunctionId,
    instance: InstanceId,
}

impl DirectStats {
    /// Returns a reporter for an instance.
    pub(crate) fn reporter(&self, caller: FunctionId, instance: InstanceId) -> CallReporter {
        CallReporter {
            stats: self.clone(),
            caller,
            instance,
        }
    }

    /// Returns the counters of every edge.
    pub(crate) fn edge_status(&self) -> Vec<EdgeStatus> {
        self.lock_edges()
            .iter()
            .map(|((caller, callee), edge)| edge.edge_status(caller, callee))
            .collect()
    }

    /// Returns the direct calls of a function.
    pub(crate) fn call_totals(&self, callee: &FunctionId) -> CallCounts {
        let all = self.lock_edges();
        let edges_to_callee = all
            .iter()
            .filter(|((_, to), _)| to == callee)
            .map(|(_, edge)| edge.call_totals());
        edges_to_callee.fold(CallCounts::default(), CallCounts::saturating_add)
    }

    /// Forgets edges of removed functions.
    pub(crate) fn retain_functions(&self, known: impl Fn(&FunctionId) -> bool) {
        self.lock_edges()
            .retain(|(caller, callee), _| known(caller) && known(callee));
    }

    /// Returns the instances that each instance can call directly.
    pub(crate) fn direct_paths(&self) -> BTreeMap<InstanceId, BTreeSet<InstanceAddr>> {
        self.lock_reachable().clone()
    }

    /// Returns the instances of other nodes that each instance calls directly at present.
    pub(crate) fn remote_calls(&self) -> BTreeMap<InstanceId, (FunctionId, RemoteCalls)> {
        let all = self.lock_remote();
        let called = |(instance, callees): (&InstanceId, &RemoteCallees)| {
            let is_called = |callee: &FunctionId| {
                let last = callees.last_calls.get(callee);
                last.is_some_and(|last| last.elapsed() < DIRECT_AGE)
            };
            let peers = callees.peers.iter().filter(|(callee, _)| is_called(callee));
            let peers = peers.map(|(callee, names)| (callee.clone(), names.clone()));
            (*instance, (callees.caller.clone(), peers.collect()))
        };
        all.iter().map(called).collect()
    }

    fn lock_remote(&self) -> MutexGuard<'_, BTreeMap<InstanceId, RemoteCallees>> {
        self.remote.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_reachable(&self) -> MutexGuard<'_, BTreeMap<InstanceId, BTreeSet<InstanceAddr>>> {
        self.direct_paths
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_edges(&self) -> MutexGuard<'_, BTreeMap<EdgeKey, DirectEdge>> {
        self.edges.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CallReporter {
    /// Adds a report. `chain` is the caller's.
    pub(crate) fn report(&self, chain: Option<&String>, tally: &CallTally) {
        if let Some(callees) = self.stats.lock_remote().get_mut(&self.instance)
            && callees.peers.contains_key(&tally.callee)
        {
            let last = &mut callees.last_calls;
            last.insert(tally.callee.clone(), Instant::now());
        }
        let mut all = self.stats.lock_edges();
        let edge = all
            .entry((self.caller.clone(), tally.callee.clone()))
            .or_default();
        edge.chain = chain.cloned();
        edge.add_tally(tally);
        match tally.open {
            // Only instances with open calls are kept, so the map stays small.
            0 => drop(edge.open_calls.remove(&self.instance)),
            open => drop(edge.open_calls.insert(self.instance, open)),
        }
    }
}

impl CallReporter {
    /// Replaces the instances that it can call.
    pub(crate) fn set_reachable(&self, reachable: BTreeSet<InstanceAddr>) {
        self.stats.lock_reachable().insert(self.instance, reachable);
    }

    /// Replaces the instances of other nodes that it can call.
    pub(crate) fn set_remote(&self, peers: RemoteCalls) {
        let mut all = self.stats.lock_remote();
        let callees = all.entry(self.instance).or_insert_with(|| RemoteCallees {
            caller: self.caller.clone(),
            peers: RemoteCalls::new(),
            last_calls: BTreeMap::new(),
        });
        let is_listed = |callee: &FunctionId, _: &mut Instant| peers.contains_key(callee);
        callees.last_calls.retain(is_listed);
        callees.peers = peers;
    }
}

impl Drop for CallReporter {
    fn drop(&mut self) {
        self.stats.lock_reachable().remove(&self.instance);
        self.stats.lock_remote().remove(&self.instance);
        for edge in self.stats.lock_edges().values_mut() {
            // Its result is unknown, which callers must see as failed.
            let lost = edge.open_calls.remove(&self.instance).unwrap_or_default();
            (edge.ended, edge.failed) = (
                saturating_sum(edge.ended, lost),
                saturating_sum(edge.failed, lost),
            );
        }
    }
}

impl DirectEdge {
    fn add_tally(&mut self, tally: &CallTally) {
        // A watchdog may report more failures than calls.
        (self.ended, self.failed) = (
            saturating_sum(self.ended, tally.ended),
            saturating_sum(self.failed, tally.failed.min(tally.ended)),
        );
        self.micros = self.micros.saturating_add(tally.micros);
        self.latency
            .iter_mut()
            .zip(tally.latency)
            .for_each(|(sum, more)| *sum = saturating_sum(*sum, more));
    }

    fn open_calls(&self) -> u64 {
        self.open_calls
            .values()
            .fold(0, |sum, open| saturating_sum(sum, *open))
    }

    fn call_totals(&self) -> CallCounts {
        CallCounts {
            ended: self.ended,
            failed: self.failed,
            open: self.open_calls(),
        }
    }

    fn edge_status(&self, caller: &FunctionId, callee: &FunctionId) -> EdgeStatus {
        EdgeStatus {
            chain: self.chain.clone().unwrap_or_default(),
            namespace: caller.namespace.to_string(),
            caller: caller.to_string(),
            callee: callee.to_string(),
            requests: self.ended,
            failed: self.failed,
            in_flight: self.open_calls(),
            seconds: self.micros as f64 / 1e6,
            latency: self
                .latency
                .iter()
                .enumerate()
                .map(|(k, &count)| LatencyBucket {
                    below: CallTally::bucket_bound(k),
                    count,
                })
                .collect(),
            ..EdgeStatus::default()
        }
    }
}

/// Adds without overflow: a watchdog may report any number.
fn saturating_sum(sum: u64, more: u32) -> u64 {
    sum.saturating_add(more.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally_of(open: u32, ended: u32, failed: u32) -> CallTally {
        CallTally {
            open,
            ended,
            failed,
            ..CallTally::for_callee("b".parse().unwrap())
        }
    }

    fn totals(direct: &DirectStats) -> (u64, u64, u64) {
        let CallCounts {
            ended,
            failed,
            open,
        } = direct.call_totals(&"b".parse().unwrap());
        let edges = direct.edge_status();
        assert_eq!(
            (edges[0].requests, edges[0].failed, edges[0].in_flight),
            (ended, failed, open)
        );
        (ended, failed, open)
    }

    #[test]
    fn reports_add_up_and_open_calls_fail_with_their_reporter() {
        let direct = DirectStats::default();
        let [one, two] =
            [1, 2].map(|number| direct.reporter("a".parse().unwrap(), InstanceId(number)));
        one.report(None, &tally_of(2, 5, 1));
        two.report(None, &tally_of(1, 0, 0));
        assert_eq!(totals(&direct), (5, 1, 3));
        one.report(None, &tally_of(0, 2, 9));
        assert_eq!(totals(&direct), (7, 3, 1), "no more fail than end");
        drop(two);
        assert_eq!(totals(&direct), (8, 4, 0));
        direct.retain_functions(|id| *id != "a".parse().unwrap());
        assert_eq!(direct.edge_status(), []);
    }
}
