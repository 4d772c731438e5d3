//! The ledgers of the node's domains, readable at any time: for metrics, for `nearpath edges` and `nearpath memory`.
//!
//! A ledger stays when its domain ends, until what its edges counted is old enough to be forgotten: a chain that is deployed
//! again goes on counting.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nearpath_domain::clock;
use nearpath_domain::hub::{BUCKETS, Calls, EdgeCounters, Holdings, Ledger, Roll};
use nearpath_types::chain::{Bucket, EdgeStatus, GATEWAY, HolderStatus, MemoryStatus};
use nearpath_types::{FunctionId, InstanceAddr, InstanceId};

use crate::direct::Direct;
use crate::sums;

/// By domain ([`nearpath_types::Policy::domain`]). Clones are the same books.
#[derive(Debug, Clone, Default)]
pub(crate) struct Books {
    ledgers: Arc<Mutex<BTreeMap<String, Ledger>>>,
    /// Calls that went past memory and gateway.
    direct: Direct,
}

impl Books {
    /// The ledger of a domain.
    pub(crate) fn of(&self, domain: &str) -> Ledger {
        self.all().entry(domain.to_owned()).or_default().clone()
    }

    /// What every edge of every chain counted. A chain that was or is in several domains (it was deployed again with another
    /// delivery or isolation, or does not agree with itself) is one chain: its counters are sums.
    pub(crate) fn edges(&self) -> Vec<EdgeStatus> {
        let now = clock::now();
        let mut all = self.all();
        let counted =
            all.iter().flat_map(|(domain, ledger)| ledger.edges(now).into_iter().map(move |line| (domain, line)));
        let direct = self.direct.edges().into_iter();
        let edges = sums::edges(counted.filter_map(|(domain, line)| edge(domain, line)).chain(direct));
        all.retain(|_, ledger| !ledger.is_idle());
        edges
    }

    /// How often a function was called by others past the gateway; it may have been in several domains, one after another.
    pub(crate) fn calls(&self, callee: &FunctionId) -> Calls {
        self.all().values().fold(self.direct.calls(callee), |all, ledger| all.and(ledger.calls(callee)))
    }

    /// Which instances can call which directly.
    pub(crate) fn ways(&self) -> BTreeMap<InstanceId, BTreeSet<InstanceAddr>> {
        self.direct.ways()
    }

    /// For those who tell of calls that the node does not see.
    pub(crate) fn direct(&self) -> Direct {
        self.direct.clone()
    }

    /// Forgets how often functions were called that there are no more.
    pub(crate) fn retain(&self, known: impl Fn(&FunctionId) -> bool) {
        self.direct.retain(&known);
        self.all().values().for_each(|ledger| ledger.retain(&known));
    }

    /// The memory of every chain; of one in several domains, together.
    pub(crate) fn memory(&self) -> Vec<MemoryStatus> {
        let all = self.all();
        let held = all.iter().filter_map(|(domain, ledger)| Some(memory(domain, ledger.holdings()?)));
        sums::memory(held)
    }

    /// Who is in each domain.
    pub(crate) fn rolls(&self) -> BTreeMap<String, Roll> {
        self.all().iter().map(|(domain, ledger)| (domain.clone(), ledger.roll())).collect()
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<String, Ledger>> {
        self.ledgers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Chain and namespace of `CHAIN.NAMESPACE:WAY…`: a namespace has no dot, and neither has a colon.
fn split(domain: &str) -> (String, String) {
    let chain = domain.split_once(':').map_or(domain, |(chain, _)| chain);
    let (chain, namespace) = chain.rsplit_once('.').unwrap_or((chain, ""));
    (chain.to_owned(), namespace.to_owned())
}

fn name(function: Option<&FunctionId>) -> String {
    function.map_or_else(|| GATEWAY.to_owned(), ToString::to_string)
}

/// The caller says how many calls there were and how long they took: its time holds the way as well.
fn edge(domain: &str, counted: EdgeCounters) -> Option<EdgeStatus> {
    let EdgeCounters { caller, callee, made, taken } = counted;
    let (chain, namespace) = split(domain);
    Some(EdgeStatus {
        chain,
        namespace,
        caller: name(caller.as_ref()),
        callee: callee?.to_string(),
        requests: made.answered,
        failed: made.failed,
        in_flight: made.in_flight,
        call_messages: made.messages,
        call_bytes: made.bytes,
        answer_messages: taken.messages,
        answer_bytes: taken.bytes,
        seconds: made.micros as f64 / 1e6,
        latency: made.latency.iter().enumerate().map(|(k, &count)| Bucket { below: bound(k), count }).collect(),
    })
}

/// Bucket k ends at 4^(k+1) µs (`contract/memory.md`); the last has no end.
fn bound(bucket: usize) -> Option<f64> {
    (bucket + 1 < BUCKETS).then(|| 4f64.powi(bucket as i32 + 1) / 1e6)
}

fn memory(domain: &str, held: Holdings) -> MemoryStatus {
    let (chain, namespace) = split(domain);
    let holder = |(function, held): (&Option<FunctionId>, &nearpath_domain::hub::Held)| HolderStatus {
        function: name(function.as_ref()),
        parties: held.parties,
        slots: held.slots,
        bytes: held.bytes,
        bound_bytes: held.bound,
    };
    MemoryStatus {
        chain,
        namespace,
        size_bytes: held.size,
        used_bytes: held.used,
        page_bytes: held.page,
        missed_huge: held.missed_huge,
        dead_bytes: held.dead,
        holders: held.holders.iter().map(holder).collect(),
    }
}

#[cfg(test)]
mod tests {
    use nearpath_types::Policy;
    use nearpath_types::policy::{Delivery, Isolation};

    use super::*;

    #[test]
    fn a_domain_of_any_way_is_its_chains() {
        let function: FunctionId = "cart".parse().unwrap();
        let chain = Some("shop".to_owned());
        for delivery in [Delivery::Ring, Delivery::Sockmap, Delivery::Poll] {
            for isolation in [Isolation::Shared, Isolation::Strict] {
                let policy = Policy { chain: chain.clone(), delivery, isolation, ..Policy::default() };
                let domain = policy.domain(&function).unwrap();
                assert_eq!(split(&domain), ("shop".into(), "openfaas-fn".into()), "{domain}");
            }
        }
    }
}
