//! What the gateway keeps about one function: what the last snapshot said, and what lives longer than a snapshot.

use std::sync::Arc;
use std::time::Instant;

use arc_swap::ArcSwap;
use http::HeaderValue;
use nearpath_types::{FunctionId, FunctionRoute, InstanceState, Policy, duration};

use super::endpoint::Endpoint;
use super::gate::{Gate, UNLIMITED};
use super::tally::Tally;
use super::wake_throttle::Bell;

/// A function that can be called. Lives from the snapshot that brings it to the one that lacks it.
#[derive(Debug)]
pub(crate) struct Function {
    /// Who it is.
    pub id: FunctionId,
    /// `NAME.NAMESPACE`, for metrics and logs.
    pub name: Box<str>,
    /// The same, for requests that bring no `Host`.
    pub host: HeaderValue,
    /// Who is let in.
    pub gate: Arc<Gate>,
    /// Rung when it sleeps.
    pub bell: Bell,
    /// What it did.
    pub tally: Tally,
    route: ArcSwap<Route>,
}

/// What the last snapshot says about a function.
#[derive(Debug)]
pub(crate) struct Route {
    /// Limits, timeouts and permitted edges.
    pub policy: Arc<Policy>,
    /// Instances that may be called.
    pub ready: Vec<Arc<Endpoint>>,
    /// Those that were withdrawn and still finish what they have.
    leaving: Vec<Arc<Endpoint>>,
    /// Why none is ready.
    pub trouble: Option<Arc<str>>,
    /// The whole request's limit, as `X-Timeout` tells it.
    pub total: HeaderValue,
    /// The security domain.
    pub domain: Option<String>,
    /// Whether reads are to be issued when it is called.
    pub foresees: bool,
}

impl Function {
    /// A function without instances; [`Function::update`] brings them.
    pub(crate) fn new(id: FunctionId, policy: Arc<Policy>) -> Self {
        let name = id.to_string().into_boxed_str();
        Self {
            host: HeaderValue::from_str(&name).expect("RFC 1035 labels and a dot are visible ASCII"),
            gate: Gate::new(0, policy.queue),
            bell: Bell::new(Instant::now()),
            tally: Tally::default(),
            route: ArcSwap::from_pointee(Route::new(&id, policy, Vec::new(), Vec::new(), None)),
            id,
            name,
        }
    }

    /// What the last snapshot says.
    pub(crate) fn route(&self) -> Arc<Route> {
        self.route.load_full()
    }

    /// Takes over a snapshot's entry. Instances that were ready before keep their counts; those that no longer are get
    /// nothing new from here on, and what is still at them no longer counts against the limit.
    pub(crate) fn update(&self, entry: &FunctionRoute) {
        let before = self.route();
        let ready = merge(&before.ready, entry);
        let capacity = capacity(&entry.policy, ready.len());
        let missing = |old: &&Arc<Endpoint>| !ready.iter().any(|new| Arc::ptr_eq(old, new));
        let withdrawn: Vec<_> = before.ready.iter().filter(missing).cloned().collect();
        let leaving = leaving(&before.leaving, &withdrawn, entry);
        let trouble = entry.trouble.clone();
        self.route.store(Arc::new(Route::new(&self.id, entry.policy.clone(), ready, leaving, trouble)));
        for endpoint in &withdrawn {
            self.gate.forgive(endpoint.withdraw());
        }
        self.gate.resize(capacity, entry.policy.queue);
    }

    /// Ends it: nothing new is sent, and whoever waits learns that it is gone.
    pub(crate) fn remove(&self) {
        for gone in &self.route().ready {
            gone.withdraw();
        }
        self.gate.close();
    }
}

impl Route {
    fn new(
        id: &FunctionId,
        policy: Arc<Policy>,
        ready: Vec<Arc<Endpoint>>,
        leaving: Vec<Arc<Endpoint>>,
        trouble: Option<Arc<str>>,
    ) -> Self {
        let total = HeaderValue::from_str(&duration::format(policy.total_timeout)).expect("a duration is ASCII");
        let domain = policy.domain(id);
        let foresees = policy.egress.iter().any(|to| !to.prefetch.is_empty());
        Self { policy, ready, leaving, trouble, total, domain, foresees }
    }

    /// Whether a request would have to wait for an instance to start.
    pub(crate) fn is_cold(&self) -> bool {
        self.ready.is_empty()
    }
}

fn capacity(policy: &Policy, ready: usize) -> u32 {
    let ready = u32::try_from(ready).unwrap_or(UNLIMITED);
    match policy.max_inflight {
        Some(each) => each.saturating_mul(ready).min(UNLIMITED),
        None if ready == 0 => 0,
        None => UNLIMITED,
    }
}

fn merge(before: &[Arc<Endpoint>], entry: &FunctionRoute) -> Vec<Arc<Endpoint>> {
    let ready = entry.instances.iter().filter(|instance| instance.state == InstanceState::Ready);
    ready
        .map(|instance| {
            let same = |old: &&Arc<Endpoint>| old.id == instance.id && old.addr == instance.addr.0;
            let known = before.iter().find(same).cloned();
            let endpoint = known.unwrap_or_else(|| Endpoint::of(instance).into());
            endpoint.named(instance.quic.as_ref());
            endpoint
        })
        .collect()
}

/// Those that are withdrawn and still there; of the others it is noted that they are gone.
fn leaving(before: &[Arc<Endpoint>], withdrawn: &[Arc<Endpoint>], entry: &FunctionRoute) -> Vec<Arc<Endpoint>> {
    let there = |one: &&Arc<Endpoint>| entry.instances.iter().any(|instance| instance.id == one.id);
    let (leaving, gone): (Vec<_>, Vec<_>) = before.iter().chain(withdrawn).partition(there);
    gone.into_iter().for_each(|one| one.end());
    leaving.into_iter().cloned().collect()
}
