//! Bounds on subscribers of this node's state.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nearpath_types::NodeName;
use tokio::sync::oneshot;

/// Maximum subscriptions of one node. A newer one ends the oldest, which may be one that the node
/// has lost: the server of a broken connection learns of it late.
pub const MAX_PEER_SUBSCRIBERS: usize = 2;
/// Maximum subscriptions in all.
pub const MAX_SUBSCRIBERS: usize = 1_024;

/// Open subscriptions by node, oldest first.
#[derive(Debug, Default)]
pub(super) struct SubscriberTable(Mutex<TableState>);

#[derive(Debug, Default)]
struct TableState {
    last_id: u64,
    peers: BTreeMap<NodeName, VecDeque<SubscriberEntry>>,
    count: usize,
}

/// Entry of a subscription. Dropping it ends the subscription.
#[derive(Debug)]
struct SubscriberEntry {
    id: u64,
    _end: oneshot::Sender<()>,
}

/// Place of one subscription, free again when it is dropped.
#[derive(Debug)]
pub(super) struct SubscriberPermit {
    table: Arc<SubscriberTable>,
    peer: NodeName,
    id: u64,
    /// Resolves when the subscription must end.
    pub(super) ended: oneshot::Receiver<()>,
}

impl SubscriberTable {
    /// Adds a subscription; `None`: there are too many.
    pub(super) fn admit(self: &Arc<Self>, peer: &NodeName) -> Option<SubscriberPermit> {
        let mut state = self.lock();
        state.end_oldest(peer);
        if state.count >= MAX_SUBSCRIBERS {
            return None;
        }
        let (end, ended) = oneshot::channel();
        let (id, peer) = (state.last_id + 1, peer.clone());
        (state.last_id, state.count) = (id, state.count + 1);
        let entry = SubscriberEntry { id, _end: end };
        state
            .peers
            .entry(peer.clone())
            .or_default()
            .push_back(entry);
        let table = self.clone();
        Some(SubscriberPermit {
            table,
            peer,
            id,
            ended,
        })
    }

    fn lock(&self) -> MutexGuard<'_, TableState> {
        // Each change of the table is complete, so a panic elsewhere leaves it valid.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TableState {
    fn end_oldest(&mut self, peer: &NodeName) {
        let Some(entries) = self.peers.get_mut(peer) else {
            return;
        };
        while entries.len() >= MAX_PEER_SUBSCRIBERS && entries.pop_front().is_some() {
            self.count -= 1;
        }
    }

    fn remove(&mut self, peer: &NodeName, id: u64) {
        let Some(entries) = self.peers.get_mut(peer) else {
            return;
        };
        let before = entries.len();
        entries.retain(|entry| entry.id != id);
        // Ended subscriptions were removed before.
        self.count -= before - entries.len();
        if entries.is_empty() {
            self.peers.remove(peer);
        }
    }
}

impl Drop for SubscriberPermit {
    fn drop(&mut self) {
        self.table.lock().remove(&self.peer, self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(number: usize) -> NodeName {
        format!("n{number}").parse().unwrap()
    }

    fn is_ended(permit: &mut SubscriberPermit) -> bool {
        permit.ended.try_recv() == Err(oneshot::error::TryRecvError::Closed)
    }

    #[test]
    fn a_third_subscription_of_a_node_ends_its_oldest() {
        let table = Arc::new(SubscriberTable::default());
        let mut permits: Vec<_> = (0..3).map(|_| table.admit(&name(1)).unwrap()).collect();
        let ended: Vec<bool> = permits.iter_mut().map(is_ended).collect();
        assert_eq!(ended, [true, false, false]);
        assert_eq!(table.lock().count, 2);
        drop(permits);
        let state = table.lock();
        assert!(state.count == 0 && state.peers.is_empty());
    }

    #[test]
    fn subscriptions_in_all_are_bounded() {
        let table = Arc::new(SubscriberTable::default());
        let mut permits: Vec<_> = (0..MAX_SUBSCRIBERS)
            .map(|n| table.admit(&name(n)))
            .collect();
        assert!(permits.iter().all(Option::is_some));
        assert!(table.admit(&name(MAX_SUBSCRIBERS)).is_none());
        permits.pop();
        assert!(table.admit(&name(MAX_SUBSCRIBERS)).is_some());
    }
}
