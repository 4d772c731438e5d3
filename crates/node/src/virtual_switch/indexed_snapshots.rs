//! Snapshots of this node's functions, with an index of their addresses.

use std::sync::{Arc, Mutex, PoisonError};

use nearpath_types::RoutingSnapshot;
use tokio::sync::watch;

use super::address_index::AddressIndex;

/// Snapshots with their index, which is made once for each that is asked for. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct IndexedSnapshots {
    snapshots: watch::Receiver<Arc<RoutingSnapshot>>,
    latest: Arc<Mutex<Arc<AddressIndex>>>,
}

impl IndexedSnapshots {
    pub(crate) fn new(snapshots: watch::Receiver<Arc<RoutingSnapshot>>) -> Self {
        Self {
            snapshots,
            latest: Arc::default(),
        }
    }

    /// Returns the index of the current snapshot.
    pub(super) fn current(&self) -> Arc<AddressIndex> {
        let snapshot = self.snapshots.borrow().clone();
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        if !Arc::ptr_eq(&latest.snapshot, &snapshot) {
            *latest = Arc::new(AddressIndex::new(snapshot));
        }
        latest.clone()
    }

    /// Waits for the next snapshot.
    ///
    /// # Errors
    /// Fails when the node has ended.
    pub(super) async fn changed(&mut self) -> Result<(), watch::error::RecvError> {
        self.snapshots.changed().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::virtual_switch::address_index::sample::snapshot;

    #[test]
    fn the_index_follows_its_snapshots() {
        let (sender, receiver) = watch::channel(snapshot(&[6], &[]));
        let indexed = IndexedSnapshots::new(receiver);
        let (first, same) = (indexed.current(), indexed.current());
        assert!(Arc::ptr_eq(&first, &same), "made once");
        sender.send_replace(snapshot(&[8], &[]));
        let store = "store".parse().unwrap();
        assert!(indexed.current().answers([10, 62, 0, 8].into(), &store));
    }
}
