//! State of one function: its route from the last snapshot, and state that outlives snapshots.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use arc_swap::ArcSwap;
use http::HeaderValue;
use nearpath_types::{
    FunctionId, FunctionPolicy, FunctionRoute, InstanceId, InstanceState, StartFailure, duration,
};

use super::edge_tally::EdgeTally;
use super::endpoint::FunctionEndpoint;
use super::gate::{AdmissionGate, UNLIMITED};
use super::node_targets::NodeTargets;
use super::tally::FunctionTally;
use super::wake_throttle::WakeThrottle;

/// A function that can be called. Lives from the snapshot that adds it to the one that lacks it.
#[derive(Debug)]
pub(crate) struct FunctionEntry {
    /// Id of the function.
    pub id: FunctionId,
    /// `NAME.NAMESPACE`, for metrics and logs.
    pub name: Box<str>,
    /// The same name, for requests without `Host`.
    pub host: HeaderValue,
    /// Admission of its requests.
    pub gate: Arc<AdmissionGate>,
    /// Limits wake-ups while it has no instance.
    pub wake_throttle: WakeThrottle,
    /// Counters of its requests.
    pub tally: FunctionTally,
    route: ArcSwap<ActiveRoute>,
}

/// Route of a function in the last snapshot.
#[derive(Debug)]
pub(crate) struct ActiveRoute {
    /// Limits, timeouts and permitted edges.
    pub policy: Arc<FunctionPolicy>,
    /// Instances of this node that may be called.
    pub ready: Vec<Arc<FunctionEndpoint>>,
    /// Other nodes that may be called, in the order of their names.
    pub remotes: Vec<Arc<FunctionEndpoint>>,
    /// The function may have instances on this node.
    pub runs_here: bool,
    /// Withdrawn instances that still finish requests.
    draining: Vec<Arc<FunctionEndpoint>>,
    /// Cause for which no instance is ready.
    pub start_failure: Option<StartFailure>,
    /// Total timeout as value of `X-Timeout`.
    pub total_timeout_header: HeaderValue,
    /// The security domain.
    pub domain: Option<String>,
    /// Prefetches are declared for its calls.
    pub prefetches: bool,
    /// Counters of the edges that it declares, in the order of `policy.calls`.
    edge_tallies: Arc<[Arc<EdgeTally>]>,
}

impl FunctionEntry {
    /// Creates a function without instances; [`FunctionEntry::apply_snapshot`] adds them.
    pub(crate) fn new(id: FunctionId, policy: Arc<FunctionPolicy>) -> Self {
        let name = id.to_string().into_boxed_str();
        let edge_tallies = policy.calls.iter().map(|_| Arc::default()).collect();
        Self {
            host: HeaderValue::from_str(&name)
                .expect("RFC 1035 labels and a dot are visible ASCII"),
            // Capacity 0: requests wait until `apply_snapshot` has brought an instance.
            gate: AdmissionGate::new(0, policy.queue),
            wake_throttle: WakeThrottle::new(Instant::now()),
            tally: FunctionTally::default(),
            route: ArcSwap::from_pointee(ActiveRoute::empty(&id, edge_tallies, policy)),
            id,
            name,
        }
    }

    /// Returns the route of the last snapshot.
    pub(crate) fn route(&self) -> Arc<ActiveRoute> {
        self.route.load_full()
    }

    /// Applies an entry of a snapshot. Instances that stay ready keep their counts. Withdrawn
    /// ones get no new requests, and their open requests no longer count against the limit. Returns
    /// the instances that this entry withdraws.
    pub(crate) fn apply_snapshot(
        &self,
        entry: &FunctionRoute,
        nodes: &NodeTargets,
    ) -> Vec<Arc<FunctionEndpoint>> {
        let before = self.route();
        let (ready, remotes) = (
            merge_ready(&before.ready, entry),
            merge_remotes(&before.remotes, entry, nodes),
        );
        let withdrawn = missing_in(&ready, &before.ready);
        let left = missing_in(&remotes, &before.remotes);
        let draining = still_draining(&before.draining, &withdrawn, entry);
        let edge_tallies = before.edge_tallies_for(&entry.policy.calls);
        let capacity = request_capacity(entry, ready.len(), remotes.len());
        // First the route, then the withdrawal, then the capacity. A request that is admitted in
        // between finds the new instances. A slot at an old one fails, and another is picked.
        self.route.store(Arc::new(ActiveRoute {
            ready,
            remotes,
            draining,
            runs_here: entry.runs_here,
            start_failure: entry.start_failure.clone(),
            ..ActiveRoute::empty(&self.id, edge_tallies, entry.policy.clone())
        }));
        for endpoint in withdrawn.iter().chain(&left) {
            self.gate.release_withdrawn(endpoint.withdraw());
        }
        self.gate.set_limits(capacity, entry.policy.queue);
        withdrawn
    }

    /// Removes the function: no request is sent any more, and waiting ones fail. Returns the
    /// instances that this withdraws.
    pub(crate) fn remove_function(&self) -> Vec<Arc<FunctionEndpoint>> {
        let route = self.route();
        for endpoint in route.ready.iter().chain(&route.remotes) {
            endpoint.withdraw();
        }
        self.gate.close_gate();
        route.ready.clone()
    }
}

impl ActiveRoute {
    /// Creates a route without instances.
    fn empty(
        id: &FunctionId,
        edge_tallies: Arc<[Arc<EdgeTally>]>,
        policy: Arc<FunctionPolicy>,
    ) -> Self {
        let total_timeout_header =
            HeaderValue::from_str(&duration::format_duration(policy.total_timeout))
                .expect("a duration is ASCII");
        let domain = policy.domain(id);
        let prefetches = policy.egress.iter().any(|to| !to.prefetch.is_empty());
        Self {
            policy,
            ready: Vec::new(),
            remotes: Vec::new(),
            draining: Vec::new(),
            runs_here: true,
            start_failure: None,
            total_timeout_header,
            domain,
            prefetches,
            edge_tallies,
        }
    }

    /// Returns the counters of the edge to `callee`; `None`: that edge is not declared.
    pub(crate) fn edge_to(&self, callee: &FunctionId) -> Option<&EdgeTally> {
        // The search is that of `FunctionPolicy::may_call`, so counting needs none of its own.
        let position = self.policy.calls.iter().position(|id| id == callee)?;
        self.edge_tallies.get(position).map(|tally| &**tally)
    }

    /// Returns the declared edges: callees and counters.
    pub(crate) fn edges(&self) -> impl Iterator<Item = (&FunctionId, &Arc<EdgeTally>)> {
        self.policy.calls.iter().zip(&*self.edge_tallies)
    }

    /// Returns counters for a new list of callees. Edges that stay keep theirs.
    fn edge_tallies_for(&self, calls: &[FunctionId]) -> Arc<[Arc<EdgeTally>]> {
        if self.policy.calls == calls {
            return self.edge_tallies.clone();
        }
        let known: HashMap<_, _> = self.edges().collect();
        let tallies = calls.iter().map(|id| known.get(id).copied().cloned());
        tallies.map(Option::unwrap_or_default).collect()
    }

    /// Returns the endpoints whose places the gate counts: the instances of this node, or the other
    /// nodes if the function does not run here.
    pub(crate) fn gated(&self) -> &[Arc<FunctionEndpoint>] {
        match self.runs_here {
            true => &self.ready,
            false => &self.remotes,
        }
    }

    /// Returns the address of an instance of this node that is ready or drains.
    pub(crate) fn instance_addr(&self, id: InstanceId) -> Option<IpAddr> {
        let mut instances = self.ready.iter().chain(&self.draining);
        let found = instances.find(|one| one.instance() == Some(id))?;
        Some(found.target.addr.ip())
    }

    /// Returns whether a request has to wait for an instance to start, or for a node to be reachable.
    pub(crate) fn is_cold(&self) -> bool {
        self.gated().is_empty()
    }
}

/// Returns the places at the gate. Other nodes have gates of their own, so their places are not
/// counted here.
fn request_capacity(entry: &FunctionRoute, ready: usize, remotes: usize) -> u32 {
    if !entry.runs_here {
        return if remotes == 0 { 0 } else { UNLIMITED };
    }
    let ready = u32::try_from(ready).unwrap_or(UNLIMITED);
    match entry.policy.max_inflight {
        // Saturated: an overflow must mean no limit, not a small one.
        Some(each) => each.saturating_mul(ready).min(UNLIMITED),
        // Without a limit per instance, the gate still has to stop requests that no instance
        // could take.
        None if ready == 0 => 0,
        None => UNLIMITED,
    }
}

/// Returns the endpoints of `before` that `now` lacks.
fn missing_in(
    now: &[Arc<FunctionEndpoint>],
    before: &[Arc<FunctionEndpoint>],
) -> Vec<Arc<FunctionEndpoint>> {
    let is_missing = |old: &&Arc<FunctionEndpoint>| !now.iter().any(|new| Arc::ptr_eq(old, new));
    before.iter().filter(is_missing).cloned().collect()
}

fn merge_ready(
    before: &[Arc<FunctionEndpoint>],
    entry: &FunctionRoute,
) -> Vec<Arc<FunctionEndpoint>> {
    let ready = entry
        .instances
        .iter()
        .filter(|instance| instance.state == InstanceState::Ready);
    ready
        .map(|instance| {
            // Both must match: an instance that restarts at another address needs new
            // connections.
            let same = |old: &&Arc<FunctionEndpoint>| {
                old.instance() == Some(instance.id) && old.target.addr == instance.addr.0
            };
            let known = before.iter().find(same).cloned();
            let endpoint = known.unwrap_or_else(|| FunctionEndpoint::for_instance(instance).into());
            endpoint.set_server_name(instance.quic.as_ref());
            endpoint.set_server(instance.server.as_ref());
            endpoint
        })
        .collect()
}

/// Returns an endpoint for each other node with instances, with its last report.
fn merge_remotes(
    before: &[Arc<FunctionEndpoint>],
    entry: &FunctionRoute,
    nodes: &NodeTargets,
) -> Vec<Arc<FunctionEndpoint>> {
    let known = entry
        .remotes
        .iter()
        .filter_map(|remote| Some((remote, nodes.get(&remote.node.name)?)));
    known
        .map(|(remote, target)| {
            let same = |old: &&Arc<FunctionEndpoint>| Arc::ptr_eq(&old.target, target);
            let endpoint = before.iter().find(same).cloned().unwrap_or_else(|| {
                FunctionEndpoint::for_node(remote.node.name.clone(), target.clone()).into()
            });
            endpoint.set_load(remote.load);
            endpoint
        })
        .collect()
}

/// Returns the withdrawn instances that still exist, and marks the others as gone.
fn still_draining(
    before: &[Arc<FunctionEndpoint>],
    withdrawn: &[Arc<FunctionEndpoint>],
    entry: &FunctionRoute,
) -> Vec<Arc<FunctionEndpoint>> {
    let is_present = |one: &&Arc<FunctionEndpoint>| {
        let mut instances = entry.instances.iter();
        instances.any(|instance| one.instance() == Some(instance.id))
    };
    let (draining, gone): (Vec<_>, Vec<_>) = before.iter().chain(withdrawn).partition(is_present);
    gone.into_iter().for_each(|one| one.target.mark_gone());
    draining.into_iter().cloned().collect()
}
