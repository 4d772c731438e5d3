//! Routes of the gateway: the node's own snapshots, with the functions of other nodes.

use std::sync::Arc;

use nearpath_gateway::Gateway;
use nearpath_internode::{MergedRoutes, PeerStates, merge_routes};
use nearpath_types::RoutingSnapshot;
use tokio::sync::watch;

/// States of the other nodes, for routes.
pub(crate) struct RoutePeers {
    /// Newest states; without a sender they never change.
    pub(super) states: watch::Receiver<Arc<PeerStates>>,
    /// States that the gateway's routes reflect.
    pub(super) applied: watch::Sender<Arc<PeerStates>>,
}

impl RoutePeers {
    /// Creates the states of a node that knows no others.
    pub(crate) fn none() -> Self {
        Self {
            states: watch::channel(Arc::default()).1,
            applied: watch::Sender::default(),
        }
    }
}

/// Publishes each change to the gateway.
pub(crate) struct RouteForwarder {
    pub(crate) gateway: Gateway,
    pub(crate) snapshots: watch::Receiver<Arc<RoutingSnapshot>>,
    pub(crate) peers: RoutePeers,
    /// Version of the last own snapshot that the gateway uses.
    pub(crate) published: watch::Sender<u64>,
}

impl RouteForwarder {
    /// Runs until the node has ended.
    pub(crate) async fn run(mut self) {
        let mut merged: Option<MergedRoutes> = None;
        let mut has_peers = true;
        loop {
            let snapshot = self.snapshots.borrow_and_update().clone();
            let peers = self.peers.states.borrow_and_update().clone();
            let next = merge_routes(&snapshot, &peers, merged.as_ref());
            // Published before the version is announced: waiters may stop instances at once.
            self.gateway.publish(next.snapshot());
            merged = Some(next);
            self.published.send_replace(snapshot.version);
            self.peers.applied.send_replace(peers);
            tokio::select! {
                changed = self.snapshots.changed() => if changed.is_err() { return },
                changed = self.peers.states.changed(), if has_peers => has_peers = changed.is_ok(),
            }
        }
    }
}
