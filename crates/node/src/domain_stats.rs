//! The ledgers of the node's domains, readable at any time: for metrics, for `nearpath edges` and `nearpath memory`.
//!
//! A ledger stays when its domain ends, until what its edges counted is old enough to be forgotten: a chain that is deployed
//! again goes on counting.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nearpath_domain::clock;
use nearpath_domain::node_side::{
    CallCounts, DomainMembership, EdgeCounters, LATENCY_BUCKETS, PoolUsage, SharedStats,
};
use nearpath_types::chain_status::{
    EdgeStatus, GATEWAY_NAME, HolderStatus, LatencyBucket, MemoryStatus,
};
use nearpath_types::{FunctionId, InstanceAddr, InstanceId};

use crate::direct_stats::DirectStats;
use crate::totals;

/// By domain ([`nearpath_types::FunctionPolicy::domain`]). Clones are the same books.
#[derive(Debug, Clone, Default)]
pub(crate) struct DomainStats {
    by_domain: Arc<Mutex<BTreeMap<String, SharedStats>>>,
    /// Calls that went past memory and gateway.
    direct_stats: DirectStats,
}

impl DomainStats {
    /// The ledger of a domain.
    pub(crate) fn stats_of(&self, domain: &str) -> SharedStats {
        self.lock_domains()
            .entry(domain.to_owned())
            .or_default()
            .clone()
    }

    /// What every edge of every chain counted. A chain that was or is in several domains (it was deployed again with another
    /// delivery or isolation, or does not agree with itself) is one chain: its counters are sums.
    pub(crate) fn edge_status(&self) -> Vec<EdgeStatus> {
        let now = clock::monotonic_now();
        let mut all = self.lock_domains();
        let counted = all.iter().flat_map(|(domain, ledger)| {
            ledger
                .edge_counters(now)
                .into_iter()
                .map(move |line| (domain, line))
        });
        let direct = self.direct_stats.edge_status().into_iter();
        let edges = totals::sum_edges(
            counted
                .filter_map(|(domain, line)| edge_entry(domain, line))
                .chain(direct),
        );
        all.retain(|_, ledger| !ledger.is_idle());
        edges
    }

    /// How often a function was called by others past the gateway; it may have been in several domains, one after another.
    pub(crate) fn call_totals(&self, callee: &FunctionId) -> CallCounts {
        self.lock_domains()
            .values()
            .fold(self.direct_stats.call_totals(callee), |all, ledger| {
                all.saturating_add(ledger.call_counts(callee))
            })
    }

    /// Which instances can call which directly.
    pub(crate) fn direct_paths(&self) -> BTreeMap<InstanceId, BTreeSet<InstanceAddr>> {
        self.direct_stats.direct_paths()
    }

    /// For those who tell of calls that the node does not see.
    pub(crate) fn direct_stats(&self) -> DirectStats {
        self.direct_stats.clone()
    }

    /// Forgets how often functions were called that there are no more.
    pub(crate) fn retain_functions(&self, known: impl Fn(&FunctionId) -> bool) {
        self.direct_stats.retain_functions(&known);
        self.lock_domains()
            .values()
            .for_each(|ledger| ledger.retain_functions(&known));
    }

    /// The memory of every chain; of one in several domains, together.
    pub(crate) fn memory_status(&self) -> Vec<MemoryStatus> {
        let all = self.lock_domains();
        let held = all
            .iter()
            .filter_map(|(domain, ledger)| Some(memory_entry(domain, ledger.pool_usage()?)));
        totals::sum_memory(held)
    }

    /// Who is in each domain.
    pub(crate) fn memberships(&self) -> BTreeMap<String, DomainMembership> {
        self.lock_domains()
            .iter()
            .map(|(domain, ledger)| (domain.clone(), ledger.membership()))
            .collect()
    }

    fn lock_domains(&self) -> MutexGuard<'_, BTreeMap<String, SharedStats>> {
        self.by_domain
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Chain and namespace of `CHAIN.NAMESPACE:WAY…`: a namespace has no dot, and neither has a colon.
fn split_domain(domain: &str) -> (String, String) {
    let chain = domain.split_once(':').map_or(domain, |(chain, _)| chain);
    let (chain, namespace) = chain.rsplit_once('.').unwrap_or((chain, ""));
    (chain.to_owned(), namespace.to_owned())
}

fn function_name(function: Option<&FunctionId>) -> String {
    function.map_or_else(|| GATEWAY_NAME.to_owned(), ToString::to_string)
}

/// The caller says how many calls there were and how long they took: its time holds the way as well.
fn edge_entry(domain: &str, counted: EdgeCounters) -> Option<EdgeStatus> {
    let EdgeCounters {
        caller,
        callee,
        by_caller: made,
        by_callee: taken,
    } = counted;
    let (chain, namespace) = split_domain(domain);
    Some(EdgeStatus {
        chain,
        namespace,
        caller: function_name(caller.as_ref()),
        callee: callee?.to_string(),
        requests: made.answered,
        failed: made.failed,
        in_flight: made.in_flight,
        call_messages: made.messages,
        call_bytes: made.bytes,
        answer_messages: taken.messages,
        answer_bytes: taken.bytes,
        seconds: made.total_micros as f64 / 1e6,
        latency: made
            .latency
            .iter()
            .enumerate()
            .map(|(k, &count)| LatencyBucket {
                below: bucket_bound(k),
                count,
            })
            .collect(),
    })
}

/// Bucket k ends at 4^(k+1) µs (`contract/memory.md`); the last has no end.
fn bucket_bound(bucket: usize) -> Option<f64> {
    (bucket + 1 < LATENCY_BUCKETS).then(|| 4f64.powi(bucket as i32 + 1) / 1e6)
}

fn memory_entry(domain: &str, held: PoolUsage) -> MemoryStatus {
    let (chain, namespace) = split_domain(domain);
    let holder = |(function, held): (
        &Option<FunctionId>,
        &nearpath_domain::node_side::FunctionUsage,
    )| HolderStatus {
        function: function_name(function.as_ref()),
        endpoints: held.endpoints,
        slots: held.slots,
        bytes: held.bytes,
        bound_bytes: held.max_bytes,
    };
    MemoryStatus {
        chain,
        namespace,
        size_bytes: held.total_bytes,
        used_bytes: held.used_bytes,
        page_bytes: held.page_bytes,
        huge_pages_unavailable: held.lacks_huge_pages,
        dead_bytes: held.dead_bytes,
        holders: held.by_function.iter().map(holder).collect(),
    }
}

#[cfg(test)]
mod tests {
    use nearpath_types::FunctionPolicy;
    use nearpath_types::policy::{ChainDelivery, ChainIsolation};

    use super::*;

    #[test]
    fn every_domain_name_maps_to_its_chain() {
        let function: FunctionId = "cart".parse().unwrap();
        let chain = Some("shop".to_owned());
        for delivery in [
            ChainDelivery::Ring,
            ChainDelivery::Sockmap,
            ChainDelivery::Poll,
        ] {
            for isolation in [ChainIsolation::Shared, ChainIsolation::Strict] {
                let policy = FunctionPolicy {
                    chain: chain.clone(),
                    delivery,
                    isolation,
                    ..FunctionPolicy::default()
                };
                let domain = policy.domain(&function).unwrap();
                assert_eq!(
                    split_domain(&domain),
                    ("shop".into(), "openfaas-fn".into()),
                    "{domain}"
                );
            }
        }
    }
}
