//! Routing table: functions by name, and calling instances by address. Readers never block.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use nearpath_types::name::DEFAULT_NAMESPACE;
use nearpath_types::{FunctionId, InstanceId, RoutingSnapshot};
use tokio::sync::watch;

use super::endpoint::InstanceEndpoint;
use super::entry::FunctionEntry;

/// Routing state of the gateway.
#[derive(Debug)]
pub(crate) struct RoutingTable {
    index: ArcSwap<FunctionIndex>,
    /// Number of the last publication.
    changes: watch::Sender<u64>,
    /// Withdrawn instances with open requests. The lock serializes publishers; readers of the
    /// index never take it.
    withdrawn: Mutex<Vec<Arc<InstanceEndpoint>>>,
}

#[derive(Debug, Default)]
struct FunctionIndex {
    by_id: HashMap<FunctionId, Arc<FunctionEntry>>,
    by_name: HashMap<Box<str>, Arc<FunctionEntry>>,
    by_caller_addr: HashMap<IpAddr, Arc<FunctionEntry>>,
}

impl Default for RoutingTable {
    fn default() -> Self {
        Self {
            index: ArcSwap::default(),
            changes: watch::Sender::new(0),
            withdrawn: Mutex::default(),
        }
    }
}

impl RoutingTable {
    /// Finds a function by name; without a namespace, in the default namespace.
    pub(crate) fn find_by_name(&self, name: &str) -> Option<Arc<FunctionEntry>> {
        self.index.load().by_name.get(name).cloned()
    }

    /// Returns the function with this id.
    pub(crate) fn get(&self, id: &FunctionId) -> Option<Arc<FunctionEntry>> {
        self.index.load().by_id.get(id).cloned()
    }

    /// Finds the function whose instance has this address, in any state of the instance.
    pub(crate) fn find_caller(&self, addr: IpAddr) -> Option<Arc<FunctionEntry>> {
        self.index.load().by_caller_addr.get(&addr).cloned()
    }

    /// Returns all functions, in no particular order.
    pub(crate) fn functions(&self) -> Vec<Arc<FunctionEntry>> {
        self.index.load().by_id.values().cloned().collect()
    }

    /// Subscribes to publications.
    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Applies a snapshot. After the return, no thread sends new requests to an instance that the
    /// snapshot does not call ready.
    pub(crate) fn publish(&self, snapshot: &RoutingSnapshot) {
        let mut withdrawn = self.withdrawn();
        let before = self.index.load_full();
        let mut index = FunctionIndex::default();
        for entry in &snapshot.functions {
            // The entry is kept, because gate and counters must outlive the snapshot.
            let known = before.by_id.get(&entry.id).cloned();
            let function = known.unwrap_or_else(|| {
                FunctionEntry::new(entry.id.clone(), entry.policy.clone()).into()
            });
            withdrawn.extend(function.apply_snapshot(entry));
            for instance in &entry.instances {
                // In any state: an instance may call others while it starts or drains.
                index
                    .by_caller_addr
                    .insert(instance.addr.ip(), function.clone());
            }
            index.add_function(function);
        }
        let index = Arc::new(index);
        // Stored before functions are removed, so that no new request finds one that is closed.
        self.index.store(index.clone());
        for (_, gone) in before
            .by_id
            .iter()
            .filter(|(id, _)| !index.by_id.contains_key(id))
        {
            withdrawn.extend(gone.remove_function());
        }
        withdrawn.retain(|endpoint| endpoint.has_requests());
        self.changes.send_modify(|changes| *changes += 1);
    }

    /// Waits until no request is open at an instance that was withdrawn.
    pub(crate) async fn wait_requests_ended(&self, id: InstanceId) {
        // The last one: ids are used again.
        let last = self.withdrawn().iter().rfind(|one| one.id == id).cloned();
        if let Some(endpoint) = last {
            endpoint.wait_requests_ended().await;
        }
    }

    fn withdrawn(&self) -> MutexGuard<'_, Vec<Arc<InstanceEndpoint>>> {
        self.withdrawn
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl FunctionIndex {
    fn add_function(&mut self, function: Arc<FunctionEntry>) {
        if function.id.namespace.as_str() == DEFAULT_NAMESPACE {
            // Both names as keys: a lookup then needs no parsing and no allocation.
            self.by_name
                .insert(function.id.name.as_str().into(), function.clone());
        }
        self.by_name.insert(function.name.clone(), function.clone());
        self.by_id.insert(function.id.clone(), function);
    }
}
