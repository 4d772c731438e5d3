//! Bounds on subscribers of this node's state.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nearpath_types::NodeName;
use tokio::sync::{oneshot, watch};

/// Maximum subscriptions of one node. A newer one ends the oldest, which may be one that the node
/// has lost: the server of a broken connection learns of it late.
///
/// A node has more than one process while they replace each other, eight at most, each with a
/// subscription that starts again for a moment.
pub const MAX_PEER_SUBSCRIBERS: usize = 16;
/// Maximum subscriptions in all.
pub const MAX_SUBSCRIBERS: usize = 1_024;

/// Open subscriptions by node, and what these nodes have reported.
#[derive(Debug, Default)]
pub(super) struct SubscriberTable {
    state: Mutex<TableState>,
    changes: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct TableState {
    last_id: u64,
    peers: BTreeMap<NodeName, PeerEntry>,
    count: usize,
    /// Subscribers at the beginning of a handover whose calls may still come to this process.
    not_followed: BTreeSet<NodeName>,
}

/// A node that subscribes.
#[derive(Debug, Default)]
struct PeerEntry {
    /// Open subscriptions, oldest first.
    subscriptions: VecDeque<SubscriberEntry>,
    /// Its routes reflect that this node drains; `None`: never reported.
    has_applied_drain: Option<bool>,
}

/// Nodes that may still send calls to this one, which drains.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct DrainPending {
    /// Nodes that will report when their routes reflect the drain.
    pub(super) reporting: Vec<NodeName>,
    /// Nodes that never reported: older releases.
    pub(super) silent: Vec<NodeName>,
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
        let known = state.peers.entry(peer.clone()).or_default();
        known.subscriptions.push_back(entry);
        let table = self.clone();
        Some(SubscriberPermit {
            table,
            peer,
            id,
            ended,
        })
    }

    /// Notes whether the routes of a subscriber reflect that this node drains.
    pub(super) fn note_report(&self, peer: &NodeName, has_applied_drain: bool) {
        if let Some(entry) = self.lock().peers.get_mut(peer) {
            entry.has_applied_drain = Some(has_applied_drain);
        }
        self.changes.send_replace(());
    }

    /// Returns the subscribers whose routes may not reflect that this node drains.
    pub(super) fn drain_pending(&self) -> DrainPending {
        let mut pending = DrainPending::default();
        for (name, entry) in &self.lock().peers {
            match entry.has_applied_drain {
                Some(true) => {}
                Some(false) => pending.reporting.push(name.clone()),
                None => pending.silent.push(name.clone()),
            }
        }
        pending
    }

    /// Begins a handover. Subscribers that never reported are awaited only while they subscribe.
    pub(super) fn begin_handover(&self) {
        let mut state = self.lock();
        let reporting = state.peers.iter();
        let reporting = reporting.filter(|(_, entry)| entry.has_applied_drain.is_some());
        state.not_followed = reporting.map(|(name, _)| name.clone()).collect();
    }

    /// Notes that the calls of a subscriber go to the process that has replaced this one.
    pub(super) fn note_followed(&self, peer: &NodeName) {
        self.lock().not_followed.remove(peer);
        self.changes.send_replace(());
    }

    /// Returns the nodes that have not followed to the process that has replaced this one.
    pub(super) fn handover_pending(&self) -> Vec<NodeName> {
        let state = self.lock();
        let subscribed = state.peers.keys().cloned();
        let pending: BTreeSet<_> = subscribed.chain(state.not_followed.clone()).collect();
        pending.into_iter().collect()
    }

    /// Returns a receiver that changes when a subscriber reports or ends.
    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    fn lock(&self) -> MutexGuard<'_, TableState> {
        // Each change of the table is complete, so a panic elsewhere leaves it valid.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TableState {
    fn end_oldest(&mut self, peer: &NodeName) {
        let Some(entry) = self.peers.get_mut(peer) else {
            return;
        };
        let entries = &mut entry.subscriptions;
        while entries.len() >= MAX_PEER_SUBSCRIBERS && entries.pop_front().is_some() {
            self.count -= 1;
        }
    }

    fn remove(&mut self, peer: &NodeName, id: u64) {
        let Some(entry) = self.peers.get_mut(peer) else {
            return;
        };
        let entries = &mut entry.subscriptions;
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
        self.table.changes.send_replace(());
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
    fn one_subscription_of_a_node_too_many_ends_its_oldest() {
        let (table, count) = (Arc::new(SubscriberTable::default()), MAX_PEER_SUBSCRIBERS);
        let permits = (0..=count).map(|_| table.admit(&name(1)).unwrap());
        let mut permits: Vec<_> = permits.collect();
        let ended: Vec<bool> = permits.iter_mut().map(is_ended).collect();
        assert!(ended[0] && !ended[1..].contains(&true));
        assert_eq!(table.lock().count, count);
        drop(permits);
        let state = table.lock();
        assert!(state.count == 0 && state.peers.is_empty());
    }

    #[test]
    fn a_drain_is_pending_until_each_subscriber_has_applied_it() {
        let table = Arc::new(SubscriberTable::default());
        let permits: Vec<_> = (0..3).map(|n| table.admit(&name(n)).unwrap()).collect();
        table.note_report(&name(0), true);
        table.note_report(&name(1), false);
        table.note_report(&name(9), true); // subscribes to nothing
        let pending = |reporting: &[usize], silent: &[usize]| DrainPending {
            reporting: reporting.iter().map(|n| name(*n)).collect(),
            silent: silent.iter().map(|n| name(*n)).collect(),
        };
        assert_eq!(table.drain_pending(), pending(&[1], &[2]));
        table.note_report(&name(1), true);
        assert_eq!(table.drain_pending(), pending(&[], &[2]));
        drop(permits);
        assert_eq!(table.drain_pending(), pending(&[], &[]));
    }

    #[test]
    fn a_handover_is_pending_until_each_subscriber_has_followed() {
        let table = Arc::new(SubscriberTable::default());
        let mut permits: Vec<_> = (0..3).map(|n| table.admit(&name(n)).unwrap()).collect();
        table.note_report(&name(0), false);
        table.note_report(&name(1), false);
        table.begin_handover();
        let pending = |numbers: &[usize]| numbers.iter().map(|n| name(*n)).collect::<Vec<_>>();
        assert_eq!(table.handover_pending(), pending(&[0, 1, 2]));
        permits.remove(0); // subscribes to the next process, and its routes do not reflect it yet
        permits.pop(); // never reports
        table.note_followed(&name(1)); // but subscribes here
        assert_eq!(table.handover_pending(), pending(&[0, 1]));
        table.note_followed(&name(0));
        permits.clear();
        assert_eq!(table.handover_pending(), pending(&[]));
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
