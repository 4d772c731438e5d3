//! The functions that can be called, by name, and the instances that may call, by address. Readers never wait.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use nearpath_types::name::DEFAULT_NAMESPACE;
use nearpath_types::{FunctionId, Snapshot};
use tokio::sync::watch;

use super::state::Function;

/// The routing state of the gateway.
#[derive(Debug)]
pub(crate) struct Table {
    index: ArcSwap<Index>,
    /// Held by the one who publishes; the number of the last publication.
    changes: watch::Sender<u64>,
    publishing: Mutex<()>,
}

#[derive(Debug, Default)]
struct Index {
    functions: HashMap<FunctionId, Arc<Function>>,
    by_name: HashMap<Box<str>, Arc<Function>>,
    callers: HashMap<IpAddr, Arc<Function>>,
}

impl Default for Table {
    fn default() -> Self {
        Self { index: ArcSwap::default(), changes: watch::Sender::new(0), publishing: Mutex::new(()) }
    }
}

impl Table {
    /// The function of that name; without a namespace, the one in the default namespace.
    pub(crate) fn find(&self, name: &str) -> Option<Arc<Function>> {
        self.index.load().by_name.get(name).cloned()
    }

    /// The function of that identity.
    pub(crate) fn get(&self, id: &FunctionId) -> Option<Arc<Function>> {
        self.index.load().functions.get(id).cloned()
    }

    /// The function whose instance has that address, whatever the instance's state.
    pub(crate) fn caller(&self, addr: IpAddr) -> Option<Arc<Function>> {
        self.index.load().callers.get(&addr).cloned()
    }

    /// Every function, in no particular order.
    pub(crate) fn functions(&self) -> Vec<Arc<Function>> {
        self.index.load().functions.values().cloned().collect()
    }

    /// Hears of each publication.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Takes over a snapshot. When this returns, no thread sends anything new to an instance that the snapshot does not
    /// call ready.
    pub(crate) fn publish(&self, snapshot: &Snapshot) {
        let _one_at_a_time = self.publishing.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.index.load_full();
        let mut index = Index::default();
        for entry in &snapshot.functions {
            let known = before.functions.get(&entry.id).cloned();
            let function = known.unwrap_or_else(|| Function::new(entry.id.clone(), entry.policy.clone()).into());
            function.update(entry);
            for instance in &entry.instances {
                index.callers.insert(instance.addr.ip(), function.clone());
            }
            index.add(function);
        }
        let index = Arc::new(index);
        self.index.store(index.clone());
        for (_, gone) in before.functions.iter().filter(|(id, _)| !index.functions.contains_key(id)) {
            gone.remove();
        }
        self.changes.send_modify(|changes| *changes += 1);
    }
}

impl Index {
    fn add(&mut self, function: Arc<Function>) {
        if function.id.namespace.as_str() == DEFAULT_NAMESPACE {
            self.by_name.insert(function.id.name.as_str().into(), function.clone());
        }
        self.by_name.insert(function.name.clone(), function.clone());
        self.functions.insert(function.id.clone(), function);
    }
}
