//! State of one function: its route from the last snapshot, and state that outlives snapshots.

use std::sync::Arc;
use std::time::Instant;

use arc_swap::ArcSwap;
use http::HeaderValue;
use nearpath_types::{
    FunctionId, FunctionPolicy, FunctionRoute, InstanceState, StartFailure, duration,
};

use super::endpoint::InstanceEndpoint;
use super::gate::{AdmissionGate, UNLIMITED};
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
    /// Instances that may be called.
    pub ready: Vec<Arc<InstanceEndpoint>>,
    /// Withdrawn instances that still finish requests.
    draining: Vec<Arc<InstanceEndpoint>>,
    /// Cause for which no instance is ready.
    pub start_failure: Option<StartFailure>,
    /// Total timeout as value of `X-Timeout`.
    pub total_timeout_header: HeaderValue,
    /// The security domain.
    pub domain: Option<String>,
    /// Prefetches are declared for its calls.
    pub prefetches: bool,
}

impl FunctionEntry {
    /// Creates a function without instances; [`FunctionEntry::apply_snapshot`] adds them.
    pub(crate) fn new(id: FunctionId, policy: Arc<FunctionPolicy>) -> Self {
        let name = id.to_string().into_boxed_str();
        Self {
            host: HeaderValue::from_str(&name)
                .expect("RFC 1035 labels and a dot are visible ASCII"),
            // Capacity 0: requests wait until `apply_snapshot` has brought an instance.
            gate: AdmissionGate::new(0, policy.queue),
            wake_throttle: WakeThrottle::new(Instant::now()),
            tally: FunctionTally::default(),
            route: ArcSwap::from_pointee(ActiveRoute::new(
                &id,
                policy,
                Vec::new(),
                Vec::new(),
                None,
            )),
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
    pub(crate) fn apply_snapshot(&self, entry: &FunctionRoute) -> Vec<Arc<InstanceEndpoint>> {
        let before = self.route();
        let ready = merge_ready(&before.ready, entry);
        let capacity = request_capacity(&entry.policy, ready.len());
        let is_missing =
            |old: &&Arc<InstanceEndpoint>| !ready.iter().any(|new| Arc::ptr_eq(old, new));
        let withdrawn: Vec<_> = before.ready.iter().filter(is_missing).cloned().collect();
        let draining = still_draining(&before.draining, &withdrawn, entry);
        let start_failure = entry.start_failure.clone();
        // First the route, then the withdrawal, then the capacity. A request that is admitted in
        // between finds the new instances. A slot at an old one fails, and another is picked.
        self.route.store(Arc::new(ActiveRoute::new(
            &self.id,
            entry.policy.clone(),
            ready,
            draining,
            start_failure,
        )));
        for endpoint in &withdrawn {
            self.gate.release_withdrawn(endpoint.withdraw());
        }
        self.gate.set_limits(capacity, entry.policy.queue);
        withdrawn
    }

    /// Removes the function: no request is sent any more, and waiting ones fail. Returns the
    /// instances that this withdraws.
    pub(crate) fn remove_function(&self) -> Vec<Arc<InstanceEndpoint>> {
        let withdrawn = self.route().ready.clone();
        for endpoint in &withdrawn {
            endpoint.withdraw();
        }
        self.gate.close_gate();
        withdrawn
    }
}

impl ActiveRoute {
    fn new(
        id: &FunctionId,
        policy: Arc<FunctionPolicy>,
        ready: Vec<Arc<InstanceEndpoint>>,
        draining: Vec<Arc<InstanceEndpoint>>,
        start_failure: Option<StartFailure>,
    ) -> Self {
        let total_timeout_header =
            HeaderValue::from_str(&duration::format_duration(policy.total_timeout))
                .expect("a duration is ASCII");
        let domain = policy.domain(id);
        let prefetches = policy.egress.iter().any(|to| !to.prefetch.is_empty());
        Self {
            policy,
            ready,
            draining,
            start_failure,
            total_timeout_header,
            domain,
            prefetches,
        }
    }

    /// Returns whether a request has to wait for an instance to start.
    pub(crate) fn is_cold(&self) -> bool {
        self.ready.is_empty()
    }
}

fn request_capacity(policy: &FunctionPolicy, ready: usize) -> u32 {
    let ready = u32::try_from(ready).unwrap_or(UNLIMITED);
    match policy.max_inflight {
        // Saturated: an overflow must mean no limit, not a small one.
        Some(each) => each.saturating_mul(ready).min(UNLIMITED),
        // Without a limit per instance, the gate still has to stop requests that no instance
        // could take.
        None if ready == 0 => 0,
        None => UNLIMITED,
    }
}

fn merge_ready(
    before: &[Arc<InstanceEndpoint>],
    entry: &FunctionRoute,
) -> Vec<Arc<InstanceEndpoint>> {
    let ready = entry
        .instances
        .iter()
        .filter(|instance| instance.state == InstanceState::Ready);
    ready
        .map(|instance| {
            // Both must match: an instance that restarts at another address needs new
            // connections.
            let same =
                |old: &&Arc<InstanceEndpoint>| old.id == instance.id && old.addr == instance.addr.0;
            let known = before.iter().find(same).cloned();
            let endpoint =
                known.unwrap_or_else(|| InstanceEndpoint::from_instance(instance).into());
            endpoint.set_server_name(instance.quic.as_ref());
            endpoint.set_server(instance.server.as_ref());
            endpoint
        })
        .collect()
}

/// Returns the withdrawn instances that still exist, and marks the others as gone.
fn still_draining(
    before: &[Arc<InstanceEndpoint>],
    withdrawn: &[Arc<InstanceEndpoint>],
    entry: &FunctionRoute,
) -> Vec<Arc<InstanceEndpoint>> {
    let is_present =
        |one: &&Arc<InstanceEndpoint>| entry.instances.iter().any(|instance| instance.id == one.id);
    let (draining, gone): (Vec<_>, Vec<_>) = before.iter().chain(withdrawn).partition(is_present);
    gone.into_iter().for_each(|one| one.mark_gone());
    draining.into_iter().cloned().collect()
}
