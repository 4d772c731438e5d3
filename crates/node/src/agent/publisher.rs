//! Tells the data plane and the controller how things stand.

use std::collections::BTreeMap;
use std::sync::Arc;

use nearpath_types::{FunctionId, ObservedFunction, Snapshot};
use tokio::sync::watch;

use super::function::Function;
use super::record::Record;
use super::records::Records;

pub(super) type Functions = BTreeMap<FunctionId, Function>;

pub(crate) struct Publisher {
    snapshots: watch::Sender<Arc<Snapshot>>,
    observed: watch::Sender<Arc<Vec<ObservedFunction>>>,
}

impl Publisher {
    pub(crate) fn new() -> Self {
        Self { snapshots: watch::Sender::default(), observed: watch::Sender::default() }
    }

    pub(crate) fn snapshots(&self) -> watch::Receiver<Arc<Snapshot>> {
        self.snapshots.subscribe()
    }

    pub(crate) fn observed(&self) -> watch::Receiver<Arc<Vec<ObservedFunction>>> {
        self.observed.subscribe()
    }

    /// Publishes what holds now; returns the version of the snapshot that tells it.
    pub(super) fn publish(&self, functions: &Functions, records: &Records) -> u64 {
        let routes = functions.iter().filter_map(|(id, function)| function.route(records.of(id))).collect();
        self.snapshots.send_if_modified(|last| {
            let changed = last.functions != routes;
            if changed {
                *last = Arc::new(Snapshot { version: last.version + 1, functions: routes });
            }
            changed
        });
        let observed = functions.iter().map(|(id, function)| ObservedFunction {
            id: id.clone(),
            instances: records.of(id).map(Record::observed).collect(),
            trouble: function.trouble.as_deref().map(str::to_owned),
        });
        self.observed.send_replace(Arc::new(observed.collect()));
        self.snapshots.borrow().version
    }
}
