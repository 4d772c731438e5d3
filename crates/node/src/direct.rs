//! What instances tell of calls that they made past gateway and memory: read when asked for, like the domains' ledgers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nearpath_domain::hub::Calls;
use nearpath_types::chain::{Bucket, EdgeStatus};
use nearpath_types::frames::{BUCKETS, Tally};
use nearpath_types::{FunctionId, InstanceAddr, InstanceId};

/// Caller and callee.
type Edge = (FunctionId, FunctionId);

/// Clones are the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct Direct {
    lines: Arc<Mutex<BTreeMap<Edge, Line>>>,
    /// To where each instance can go.
    ways: Arc<Mutex<BTreeMap<InstanceId, BTreeSet<InstanceAddr>>>>,
}

#[derive(Debug, Default)]
struct Line {
    chain: Option<String>,
    ended: u64,
    failed: u64,
    micros: u64,
    latency: [u64; BUCKETS],
    open: BTreeMap<InstanceId, u32>,
}

/// One instance that tells. What it had open when it goes has failed.
#[derive(Debug)]
pub(crate) struct Teller {
    of: Direct,
    caller: FunctionId,
    instance: InstanceId,
}

impl Direct {
    /// For an instance that calls.
    pub(crate) fn teller(&self, caller: FunctionId, instance: InstanceId) -> Teller {
        Teller { of: self.clone(), caller, instance }
    }

    /// What every edge counted.
    pub(crate) fn edges(&self) -> Vec<EdgeStatus> {
        self.all().iter().map(|((caller, callee), line)| line.status(caller, callee)).collect()
    }

    /// How often a function was called so.
    pub(crate) fn calls(&self, callee: &FunctionId) -> Calls {
        let all = self.all();
        let theirs = all.iter().filter(|((_, to), _)| to == callee).map(|(_, line)| line.calls());
        theirs.fold(Calls::default(), Calls::and)
    }

    /// Forgets edges of functions that there are no more.
    pub(crate) fn retain(&self, known: impl Fn(&FunctionId) -> bool) {
        self.all().retain(|(caller, callee), _| known(caller) && known(callee));
    }

    /// Which instances can call which directly.
    pub(crate) fn ways(&self) -> BTreeMap<InstanceId, BTreeSet<InstanceAddr>> {
        self.all_ways().clone()
    }

    fn all_ways(&self) -> MutexGuard<'_, BTreeMap<InstanceId, BTreeSet<InstanceAddr>>> {
        self.ways.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<Edge, Line>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Teller {
    /// Takes note. `chain` is the caller's.
    pub(crate) fn tell(&self, chain: Option<&String>, tally: &Tally) {
        let mut all = self.of.all();
        let line = all.entry((self.caller.clone(), tally.callee.clone())).or_default();
        line.chain = chain.cloned();
        line.add(tally);
        match tally.open {
            0 => drop(line.open.remove(&self.instance)),
            open => drop(line.open.insert(self.instance, open)),
        }
    }
}

impl Teller {
    /// Where it can go from now on.
    pub(crate) fn reaches(&self, ways: BTreeSet<InstanceAddr>) {
        self.of.all_ways().insert(self.instance, ways);
    }
}

impl Drop for Teller {
    fn drop(&mut self) {
        self.of.all_ways().remove(&self.instance);
        for line in self.of.all().values_mut() {
            let lost = line.open.remove(&self.instance).unwrap_or_default();
            (line.ended, line.failed) = (plus(line.ended, lost), plus(line.failed, lost));
        }
    }
}

impl Line {
    fn add(&mut self, tally: &Tally) {
        (self.ended, self.failed) = (plus(self.ended, tally.ended), plus(self.failed, tally.failed.min(tally.ended)));
        self.micros = self.micros.saturating_add(tally.micros);
        self.latency.iter_mut().zip(tally.latency).for_each(|(sum, more)| *sum = plus(*sum, more));
    }

    fn open(&self) -> u64 {
        self.open.values().fold(0, |sum, open| plus(sum, *open))
    }

    fn calls(&self) -> Calls {
        Calls { ended: self.ended, failed: self.failed, open: self.open() }
    }

    fn status(&self, caller: &FunctionId, callee: &FunctionId) -> EdgeStatus {
        let bound = |bucket: usize| (bucket + 1 < BUCKETS).then(|| 4f64.powi(bucket as i32 + 1) / 1e6);
        EdgeStatus {
            chain: self.chain.clone().unwrap_or_default(),
            namespace: caller.namespace.to_string(),
            caller: caller.to_string(),
            callee: callee.to_string(),
            requests: self.ended,
            failed: self.failed,
            in_flight: self.open(),
            seconds: self.micros as f64 / 1e6,
            latency: self.latency.iter().enumerate().map(|(k, &count)| Bucket { below: bound(k), count }).collect(),
            ..EdgeStatus::default()
        }
    }
}

/// A watchdog may tell any number: sums stay sums.
fn plus(sum: u64, more: u32) -> u64 {
    sum.saturating_add(more.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(open: u32, ended: u32, failed: u32) -> Tally {
        Tally { open, ended, failed, ..Tally::of("b".parse().unwrap()) }
    }

    fn told(direct: &Direct) -> (u64, u64, u64) {
        let Calls { ended, failed, open } = direct.calls(&"b".parse().unwrap());
        let edges = direct.edges();
        assert_eq!((edges[0].requests, edges[0].failed, edges[0].in_flight), (ended, failed, open));
        (ended, failed, open)
    }

    #[test]
    fn sums_of_all_who_tell_and_what_was_open_is_lost_with_them() {
        let direct = Direct::default();
        let [one, two] = [1, 2].map(|number| direct.teller("a".parse().unwrap(), InstanceId(number)));
        one.tell(None, &tally(2, 5, 1));
        two.tell(None, &tally(1, 0, 0));
        assert_eq!(told(&direct), (5, 1, 3));
        one.tell(None, &tally(0, 2, 9));
        assert_eq!(told(&direct), (7, 3, 1), "no more fail than end");
        drop(two);
        assert_eq!(told(&direct), (8, 4, 0));
        direct.retain(|id| *id != "a".parse().unwrap());
        assert_eq!(direct.edges(), []);
    }
}
