//! Instances of this node that other nodes' watchdogs may call.

use std::sync::Arc;

use nearpath_types::direct::{DirectInstance, DirectInstances, DirectPeerNodes};
use tokio::sync::watch;

/// Direct calls between nodes: own instances, and those of others. Clones share the state.
#[derive(Clone)]
pub(crate) struct DirectRegistry {
    own: watch::Sender<Arc<DirectInstances>>,
    /// Announcements of other nodes.
    pub(super) peers: watch::Receiver<Arc<DirectPeerNodes>>,
}

impl DirectRegistry {
    /// Creates a registry without own instances.
    pub(crate) fn new(peers: watch::Receiver<Arc<DirectPeerNodes>>) -> Self {
        Self {
            own: watch::Sender::default(),
            peers,
        }
    }

    /// Returns the own instances as they change.
    pub(crate) fn watch_own(&self) -> watch::Receiver<Arc<DirectInstances>> {
        self.own.subscribe()
    }

    /// Sets what others learn about an instance; `None`: it cannot be called.
    pub(super) fn announce(&self, name: &str, instance: Option<&DirectInstance>) {
        self.own.send_if_modified(|own| {
            if own.get(name) == instance {
                return false;
            }
            let own = Arc::make_mut(own);
            match instance {
                Some(instance) => drop(own.insert(name.to_owned(), instance.clone())),
                None => drop(own.remove(name)),
            }
            true
        });
    }
}
