//! Publication of the node's state to the data plane and the controller.

use std::collections::BTreeMap;
use std::sync::Arc;

use nearpath_types::{FunctionId, ObservedFunction, RoutingSnapshot};
use tokio::sync::watch;

use super::function_state::FunctionState;
use super::instance_record::InstanceRecord;
use super::instance_table::InstanceTable;

pub(super) type FunctionStates = BTreeMap<FunctionId, FunctionState>;

pub(crate) struct StatePublisher {
    subscribe_snapshots: watch::Sender<Arc<RoutingSnapshot>>,
    subscribe_observed: watch::Sender<Arc<Vec<ObservedFunction>>>,
}

impl StatePublisher {
    pub(crate) fn new() -> Self {
        Self {
            subscribe_snapshots: watch::Sender::default(),
            subscribe_observed: watch::Sender::default(),
        }
    }

    pub(crate) fn subscribe_snapshots(&self) -> watch::Receiver<Arc<RoutingSnapshot>> {
        self.subscribe_snapshots.subscribe()
    }

    pub(crate) fn subscribe_observed(&self) -> watch::Receiver<Arc<Vec<ObservedFunction>>> {
        self.subscribe_observed.subscribe()
    }

    /// Publishes the current state; returns the version of its snapshot.
    pub(super) fn publish_state(
        &self,
        functions: &FunctionStates,
        instances: &InstanceTable,
    ) -> u64 {
        let routes = functions
            .iter()
            .filter_map(|(id, function)| function.function_route(instances.instances_of(id)))
            .collect();
        // Without a change there is no new version: the gateway's threads are not woken.
        self.subscribe_snapshots.send_if_modified(|last| {
            let changed = last.functions != routes;
            if changed {
                *last = Arc::new(RoutingSnapshot {
                    version: last.version + 1,
                    functions: routes,
                });
            }
            changed
        });
        let observed = functions.iter().map(|(id, function)| ObservedFunction {
            id: id.clone(),
            instances: instances
                .instances_of(id)
                .map(InstanceRecord::observed_instance)
                .collect(),
            start_failure: function.start_failure().map(str::to_owned),
            last_failure: function.last_failure().map(str::to_owned),
        });
        self.subscribe_observed
            .send_replace(Arc::new(observed.collect()));
        self.subscribe_snapshots.borrow().version
    }
}
