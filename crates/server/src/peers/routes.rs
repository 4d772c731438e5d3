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
            log_remotes(merged.as_ref(), &next);
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

/// Logs the instances of other nodes that calls may use from now on.
fn log_remotes(before: Option<&MergedRoutes>, after: &MergedRoutes) {
    // A node with many functions would compare its routes twice.
    if !tracing::enabled!(tracing::Level::DEBUG) {
        return;
    }
    let before = before.map(|routes| routes.snapshot().functions.clone());
    let functions = &after.snapshot().functions;
    for change in functions.changes_since(&before.unwrap_or_default()) {
        for remote in change
            .after
            .into_iter()
            .flat_map(|route| route.remotes.iter())
        {
            let (node, ready) = (&remote.node.name, remote.load.ready);
            tracing::debug!(function = %change.id, %node, ready, "routes: instances of another node");
        }
    }
}
