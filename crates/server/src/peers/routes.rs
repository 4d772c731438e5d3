//! Routes of the gateway: the node's own snapshots, with the functions of other nodes.

use std::sync::Arc;

use nearpath_gateway::Gateway;
use nearpath_internode::{MergedRoutes, PeerStates, merge_routes};
use nearpath_types::RoutingSnapshot;
use tokio::sync::watch;

/// Publishes each change to the gateway.
pub(crate) struct RouteForwarder {
    pub(crate) gateway: Gateway,
    pub(crate) snapshots: watch::Receiver<Arc<RoutingSnapshot>>,
    /// States of the other nodes; without any, they never change.
    pub(crate) peers: watch::Receiver<Arc<PeerStates>>,
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
            let peers = self.peers.borrow_and_update().clone();
            let next = merge_routes(&snapshot, &peers, merged.as_ref());
            // Published before the version is announced: waiters may stop instances at once.
            self.gateway.publish(next.snapshot());
            merged = Some(next);
            self.published.send_replace(snapshot.version);
            tokio::select! {
                changed = self.snapshots.changed() => if changed.is_err() { return },
                changed = self.peers.changed(), if has_peers => has_peers = changed.is_ok(),
            }
        }
    }
}
