//! Counters of the node's domains, readable at any time: for metrics, for `nearpath edges` and
//! `nearpath memory`. Those of edges include the calls that passed the gateway.
//!
//! Counters outlive their domain until they are too old to be reported. A chain that is deployed
//! again continues its counters.

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

use crate::config::EdgeCallReader;
use crate::direct_stats::DirectStats;
use crate::remote_paths::RemoteCalls;
use crate::totals;

/// Counters by domain ([`nearpath_types::FunctionPolicy::domain`]). Clones share their state.
#[derive(Debug, Clone, Default)]
pub(crate) struct DomainStats {
    by_domain: Arc<Mutex<BTreeMap<String, SharedStats>>>,
    /// Calls that bypassed shared memory and gateway.
    direct_stats: DirectStats,
    /// Calls that the gateway has served.
    gateway_calls: EdgeCallReader,
}

impl DomainStats {
    /// Creates counters without domains.
    pub(crate) fn new(gateway_calls: EdgeCallReader) -> Self {
        Self {
            gateway_calls,
            ..Self::default()
        }
    }

    /// Returns the counters of a domain.
    pub(crate) fn stats_of(&self, domain: &str) -> SharedStats {
        self.lock_domains()
            .entry(domain.to_owned())
            .or_default()
            .clone()
    }

    /// Returns the counters of every edge, as sums over all paths. A chain may also be in several domains,
    /// after a change of delivery or isolation or while its functions disagree.
    pub(crate) fn edge_status(&self) -> Vec<EdgeStatus> {
        let by_gateway = self.gateway_calls.read_rows();
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
                .map(|(domain, line)| edge_entry(domain, line))
                .chain(direct)
                .chain(by_gateway),
        );
        // After reading, which drops counters that are too old: only empty entries go.
        all.retain(|_, ledger| !ledger.is_idle());
        edges
    }

    /// Returns the calls of a function that bypassed the gateway, over all domains it was in.
    pub(crate) fn call_totals(&self, callee: &FunctionId) -> CallCounts {
        self.lock_domains()
            .values()
            .fold(self.direct_stats.call_totals(callee), |all, ledger| {
                all.saturating_add(ledger.call_counts(callee))
            })
    }

    /// Returns the calls of a function through a domain's memory, without failed ones.
    pub(crate) fn answered_calls(&self, domain: &str, callee: &FunctionId) -> u64 {
        let domains = self.lock_domains();
        let counts = domains.get(domain).map(|ledger| ledger.call_counts(callee));
        counts.map_or(0, |counts| counts.ended.saturating_sub(counts.failed))
    }

    /// Returns the instances that each instance can call directly.
    pub(crate) fn direct_paths(&self) -> BTreeMap<InstanceId, BTreeSet<InstanceAddr>> {
        self.direct_stats.direct_paths()
    }

    /// Returns the instances of other nodes that each instance calls directly at present.
    pub(crate) fn remote_calls(&self) -> BTreeMap<InstanceId, (FunctionId, RemoteCalls)> {
        self.direct_stats.remote_calls()
    }

    /// Returns the counters for calls that the node does not see.
    pub(crate) fn direct_stats(&self) -> DirectStats {
        self.direct_stats.clone()
    }

    /// Forgets the call counts of removed functions.
    pub(crate) fn retain_functions(&self, known: impl Fn(&FunctionId) -> bool) {
        self.direct_stats.retain_functions(&known);
        self.lock_domains()
            .values()
            .for_each(|ledger| ledger.retain_functions(&known));
    }

    /// Returns the memory of every chain; domains of one chain are summed.
    pub(crate) fn memory_status(&self) -> Vec<MemoryStatus> {
        let all = self.lock_domains();
        let held = all
            .iter()
            .filter_map(|(domain, ledger)| Some(memory_entry(domain, ledger.pool_usage()?)));
        totals::sum_memory(held)
    }

    /// Returns the endpoints and channels of each domain.
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

/// Splits `CHAIN.NAMESPACE:MODES…` into chain and namespace: a namespace has no dot, and neither
/// has a colon.
fn split_domain(domain: &str) -> (String, String) {
    let chain = domain.split_once(':').map_or(domain, |(chain, _)| chain);
    let (chain, namespace) = chain.rsplit_once('.').unwrap_or((chain, ""));
    (chain.to_owned(), namespace.to_owned())
}

fn function_name(function: Option<&FunctionId>) -> String {
    function.map_or_else(|| GATEWAY_NAME.to_owned(), ToString::to_string)
}

/// Builds an entry. Requests and times are the caller's counts, so the time includes the transfer.
fn edge_entry(domain: &str, counted: EdgeCounters) -> EdgeStatus {
    let EdgeCounters {
        caller,
        callee,
        by_caller: made,
        by_callee: taken,
    } = counted;
    let (chain, namespace) = split_domain(domain);
    EdgeStatus {
        node: None,
        chain,
        namespace,
        caller: function_name(caller.as_ref()),
        callee: function_name(callee.as_ref()),
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
        ..EdgeStatus::default()
    }
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
        max_held_bytes: held.max_bytes,
    };
    MemoryStatus {
        node: None,
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
    use nearpath_types::frames::CallTally;
    use nearpath_types::policy::{ChainDelivery, ChainIsolation};

    use super::*;

    #[test]
    fn an_edge_has_one_row_for_calls_over_all_paths() {
        let latency = (0..LATENCY_BUCKETS).map(|k| LatencyBucket {
            below: bucket_bound(k),
            count: u64::from(k == 2),
        });
        let by_gateway = EdgeStatus {
            chain: "shop".into(),
            namespace: "openfaas-fn".into(),
            caller: "front.openfaas-fn".into(),
            callee: "cart.openfaas-fn".into(),
            requests: 3,
            failed: 1,
            in_flight: 2,
            seconds: 0.5,
            answer_bytes: 7,
            latency: latency.collect(),
            ..EdgeStatus::default()
        };
        let rows = vec![by_gateway];
        let stats = DomainStats::new(EdgeCallReader::from_hook(move || rows.clone()));
        let (front, cart): (FunctionId, FunctionId) =
            ("front".parse().unwrap(), "cart".parse().unwrap());
        let direct = stats.direct_stats();
        let reporter = direct.reporter(front, InstanceId(1));
        let tally = CallTally {
            open: 1,
            ended: 4,
            micros: 1_500_000,
            ..CallTally::for_callee(cart.clone())
        };
        reporter.report(Some(&"shop".to_owned()), &tally);
        let [row] = &stats.edge_status()[..] else {
            panic!("one row: {:?}", stats.edge_status())
        };
        assert_eq!((row.requests, row.failed, row.in_flight), (7, 1, 3));
        assert_eq!((row.seconds, row.answer_bytes), (2.0, 7));
        assert_eq!(row.latency[2].count, 1);
        // The gateway counts its own calls: a count here would be a second one.
        assert_eq!(stats.call_totals(&cart).ended, 4);
    }

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
