//! What the gateway keeps about one function: what the last snapshot said, and what lives longer than a snapshot.

use std::sync::Arc;
use std::time::Instant;

use arc_swap::ArcSwap;
use http::HeaderValue;
use nearpath_types::{FunctionId, FunctionPolicy, FunctionRoute, InstanceState, duration};

use super::endpoint::InstanceEndpoint;
use super::gate::{AdmissionGate, UNLIMITED};
use super::tally::FunctionTally;
use super::wake_throttle::WakeThrottle;

/// A function that can be called. Lives from the snapshot that brings it to the one that lacks it.
#[derive(Debug)]
pub(crate) struct FunctionEntry {
    /// Who it is.
    pub id: FunctionId,
    /// `NAME.NAMESPACE`, for metrics and logs.
    pub name: Box<str>,
    /// The same, for requests that bring no `EgressHost`.
    pub host: HeaderValue,
    /// Who is let in.
    pub gate: Arc<AdmissionGate>,
    /// Rung when it sleeps.
    pub wake_throttle: WakeThrottle,
    /// What it did.
    pub tally: FunctionTally,
    route: ArcSwap<ActiveRoute>,
}

/// What the last snapshot says about a function.
#[derive(Debug)]
pub(crate) struct ActiveRoute {
    /// Limits, timeouts and permitted edges.
    pub policy: Arc<FunctionPolicy>,
    /// Instances that may be called.
    pub ready: Vec<Arc<InstanceEndpoint>>,
    /// Those that were withdrawn and still finish what they have.
    draining: Vec<Arc<InstanceEndpoint>>,
    /// Why none is ready.
    pub trouble: Option<Arc<str>>,
    /// The whole request's limit, as `X-Timeout` tells it.
    pub total_timeout_header: HeaderValue,
    /// The security domain.
    pub domain: Option<String>,
    /// Whether reads are to be issued when it is called.
    pub prefetches: bool,
}

impl FunctionEntry {
    /// A function without instances; [`FunctionEntry::apply_snapshot`] brings them.
    pub(crate) fn new(id: FunctionId, policy: Arc<FunctionPolicy>) -> Self {
        let name = id.to_string().into_boxed_str();
        Self {
            host: HeaderValue::from_str(&name)
                .expect("RFC 1035 labels and a dot are visible ASCII"),
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

    /// What the last snapshot says.
    pub(crate) fn route(&self) -> Arc<ActiveRoute> {
        self.route.load_full()
    }

    /// Takes over a snapshot's entry. Instances that were ready before keep their counts; those that no longer are get
    /// nothing new from here on, and what is still at them no longer counts against the limit.
    pub(crate) fn apply_snapshot(&self, entry: &FunctionRoute) {
        let before = self.route();
        let ready = merge_ready(&before.ready, entry);
        let capacity = request_capacity(&entry.policy, ready.len());
        let is_missing =
            |old: &&Arc<InstanceEndpoint>| !ready.iter().any(|new| Arc::ptr_eq(old, new));
        let withdrawn: Vec<_> = before.ready.iter().filter(is_missing).cloned().collect();
        let draining = still_draining(&before.draining, &withdrawn, entry);
        let trouble = entry.trouble.clone();
        self.route.store(Arc::new(ActiveRoute::new(
            &self.id,
            entry.policy.clone(),
            ready,
            draining,
            trouble,
        )));
        for endpoint in &withdrawn {
            self.gate.release_withdrawn(endpoint.withdraw());
        }
        self.gate.set_limits(capacity, entry.policy.queue);
    }

    /// Ends it: nothing new is sent, and whoever waits learns that it is gone.
    pub(crate) fn remove_function(&self) {
        for endpoint in &self.route().ready {
            endpoint.withdraw();
        }
        self.gate.close_gate();
    }
}

impl ActiveRoute {
    fn new(
        id: &FunctionId,
        policy: Arc<FunctionPolicy>,
        ready: Vec<Arc<InstanceEndpoint>>,
        draining: Vec<Arc<InstanceEndpoint>>,
        trouble: Option<Arc<str>>,
    ) -> Self {
        let total_timeout_header =
            HeaderValue::from_str(&duration::format_duration(policy.total_timeout))
                .expect("a duration is ASCII");
        let domain = policy.domain(id);
        let prefetches = policy.egress.iter().any(|to| !to.prefetch.is_empty());
        Self {
            policy,
            ready,
            draining: draining,
            trouble,
            total_timeout_header: total_timeout_header,
            domain,
            prefetches: prefetches,
        }
    }

    /// Whether a request would have to wait for an instance to start.
    pub(crate) fn is_cold(&self) -> bool {
        self.ready.is_empty()
    }
}

fn request_capacity(policy: &FunctionPolicy, ready: usize) -> u32 {
    let ready = u32::try_from(ready).unwrap_or(UNLIMITED);
    match policy.max_inflight {
        Some(each) => each.saturating_mul(ready).min(UNLIMITED),
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
            let same =
                |old: &&Arc<InstanceEndpoint>| old.id == instance.id && old.addr == instance.addr.0;
            let known = before.iter().find(same).cloned();
            let endpoint =
                known.unwrap_or_else(|| InstanceEndpoint::from_instance(instance).into());
            endpoint.set_server_name(instance.quic.as_ref());
            endpoint
        })
        .collect()
}

/// Those that are withdrawn and still there; of the others it is noted that they are gone.
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
