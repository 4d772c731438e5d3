//! The functions that can be called, by name, and the instances that may call, by address. Readers never wait.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use nearpath_types::name::DEFAULT_NAMESPACE;
use nearpath_types::{FunctionId, RoutingSnapshot};
use tokio::sync::watch;

use super::entry::FunctionEntry;

/// The routing state of the gateway.
#[derive(Debug)]
pub(crate) struct RoutingTable {
    index: ArcSwap<FunctionIndex>,
    /// Held by the one who publishes; the number of the last publication.
    changes: watch::Sender<u64>,
    publishing: Mutex<()>,
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
            publishing: Mutex::new(()),
        }
    }
}

impl RoutingTable {
    /// The function of that name; without a namespace, the one in the default namespace.
    pub(crate) fn find_by_name(&self, name: &str) -> Option<Arc<FunctionEntry>> {
        self.index.load().by_name.get(name).cloned()
    }

    /// The function of that identity.
    pub(crate) fn get(&self, id: &FunctionId) -> Option<Arc<FunctionEntry>> {
        self.index.load().by_id.get(id).cloned()
    }

    /// The function whose instance has that address, whatever the instance's state.
    pub(crate) fn find_caller(&self, addr: IpAddr) -> Option<Arc<FunctionEntry>> {
        self.index.load().by_caller_addr.get(&addr).cloned()
    }

    /// Every function, in no particular order.
    pub(crate) fn functions(&self) -> Vec<Arc<FunctionEntry>> {
        self.index.load().by_id.values().cloned().collect()
    }

    /// Hears of each publication.
    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Takes over a snapshot. When this returns, no thread sends anything new to an instance that the snapshot does not
    /// call ready.
    pub(crate) fn publish(&self, snapshot: &RoutingSnapshot) {
        let _one_at_a_time = self
            .publishing
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let before = self.index.load_full();
        let mut index = FunctionIndex::default();
        for entry in &snapshot.functions {
            let known = before.by_id.get(&entry.id).cloned();
            let function = known.unwrap_or_else(|| {
                FunctionEntry::new(entry.id.clone(), entry.policy.clone()).into()
            });
            function.apply_snapshot(entry);
            for instance in &entry.instances {
                index
                    .by_caller_addr
                    .insert(instance.addr.ip(), function.clone());
            }
            index.add_function(function);
        }
        let index = Arc::new(index);
        self.index.store(index.clone());
        for (_, gone) in before
            .by_id
            .iter()
            .filter(|(id, _)| !index.by_id.contains_key(id))
        {
            gone.remove_function();
        }
        self.changes.send_modify(|changes| *changes += 1);
    }
}

impl FunctionIndex {
    fn add_function(&mut self, function: Arc<FunctionEntry>) {
        if function.id.namespace.as_str() == DEFAULT_NAMESPACE {
            self.by_name
                .insert(function.id.name.as_str().into(), function.clone());
        }
        self.by_name.insert(function.name.clone(), function.clone());
        self.by_id.insert(function.id.clone(), function);
    }
}
