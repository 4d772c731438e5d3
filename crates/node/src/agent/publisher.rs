//! Publication of the node's state to the data plane and the controller.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nearpath_types::{
    FunctionId, FunctionMap, FunctionRoute, InstanceState, ObservedFunction, RoutingSnapshot,
    VirtualAddress,
};
use tokio::sync::watch;

use super::function_state::FunctionState;
use super::instance_record::InstanceRecord;
use super::instance_table::InstanceTable;
use crate::metrics::StateCounts;

pub(super) type FunctionStates = BTreeMap<FunctionId, FunctionState>;

pub(crate) struct StatePublisher {
    snapshots: watch::Sender<Arc<RoutingSnapshot>>,
    addresses: watch::Sender<FunctionMap<VirtualAddress>>,
    observed: watch::Sender<FunctionMap<ObservedFunction>>,
    /// Published instances by state.
    state_counts: StateCounts,
}

impl StatePublisher {
    pub(crate) fn new() -> Self {
        Self {
            snapshots: watch::Sender::default(),
            addresses: watch::Sender::default(),
            observed: watch::Sender::default(),
            state_counts: StateCounts::default(),
        }
    }

    pub(crate) fn subscribe_snapshots(&self) -> watch::Receiver<Arc<RoutingSnapshot>> {
        self.snapshots.subscribe()
    }

    /// Subscribes to the virtual addresses of all names, also of callees that are not deployed.
    pub(crate) fn subscribe_addresses(&self) -> watch::Receiver<FunctionMap<VirtualAddress>> {
        self.addresses.subscribe()
    }

    pub(crate) fn subscribe_observed(&self) -> watch::Receiver<FunctionMap<ObservedFunction>> {
        self.observed.subscribe()
    }

    /// Returns the number of published instances by state.
    pub(super) fn state_counts(&self) -> &StateCounts {
        &self.state_counts
    }

    /// Publishes the current state of these functions; returns the version of the snapshot.
    pub(super) fn publish_changes(
        &mut self,
        changed: &BTreeSet<FunctionId>,
        functions: &FunctionStates,
        instances: &InstanceTable,
        addresses: &FunctionMap<VirtualAddress>,
    ) -> u64 {
        let last = self.snapshots.borrow().clone();
        if changed.is_empty() {
            return last.version;
        }
        self.addresses.send_replace(addresses.clone());
        let (mut routes, mut has_changed) = (last.functions.clone(), false);
        let mut observed = self.observed.borrow().clone();
        for id in changed {
            let function = functions.get(id);
            let address = addresses.get(id).map(|address| **address);
            let route =
                function.and_then(|one| one.function_route(instances.instances_of(id), address));
            has_changed |= replace_route(&mut routes, id, route);
            let seen = function.map(|one| observe_function(id, one, instances));
            self.replace_observed(&mut observed, id, seen);
        }
        let version = last.version + u64::from(has_changed);
        // Without a change there is no new version: the gateway's threads are not woken.
        if has_changed {
            self.snapshots.send_replace(Arc::new(RoutingSnapshot {
                version,
                nodes: Arc::default(),
                functions: routes,
            }));
        }
        self.observed.send_replace(observed);
        version
    }

    fn replace_observed(
        &mut self,
        all: &mut FunctionMap<ObservedFunction>,
        id: &FunctionId,
        seen: Option<ObservedFunction>,
    ) {
        let states = |function: &ObservedFunction| -> Vec<InstanceState> {
            function.instances.iter().map(|one| one.state).collect()
        };
        let after = seen.as_ref().map(states).unwrap_or_default();
        let before = match seen {
            Some(seen) => all.insert(id.clone(), seen),
            None => all.remove(id),
        };
        let before = before.map(|seen| states(&seen)).unwrap_or_default();
        self.state_counts.replace(&before, &after);
    }
}

/// Replaces the route of a function; returns whether it differs from the one before.
fn replace_route(
    routes: &mut FunctionMap<FunctionRoute>,
    id: &FunctionId,
    route: Option<FunctionRoute>,
) -> bool {
    let has_changed = routes.get(id).map(|known| &**known) != route.as_ref();
    match route {
        // An equal route stays, so that a comparison of snapshots finds no change.
        Some(route) if has_changed => drop(routes.insert(id.clone(), route)),
        None => drop(routes.remove(id)),
        Some(_) => {}
    }
    has_changed
}

fn observe_function(
    id: &FunctionId,
    function: &FunctionState,
    instances: &InstanceTable,
) -> ObservedFunction {
    ObservedFunction {
        id: id.clone(),
        instances: instances
            .instances_of(id)
            .map(InstanceRecord::observed_instance)
            .collect(),
        start_failure: function.start_failure().map(str::to_owned),
        last_failure: function.last_failure().map(str::to_owned),
    }
}
