//! Functions of other nodes in the own snapshot. Pure.

use std::collections::BTreeSet;
use std::sync::Arc;

use nearpath_types::{
    FunctionId, FunctionLoad, FunctionMap, FunctionRoute, NodeName, PeerNode, RemoteInstances,
    RoutingSnapshot,
};

use crate::peer_states::{PeerStates, PeerStatus};

/// Own snapshot with the functions of other nodes, and what it was made from.
#[derive(Debug, Clone, Default)]
pub struct MergedRoutes {
    snapshot: RoutingSnapshot,
    local: RoutingSnapshot,
    peers: PeerStates,
}

impl MergedRoutes {
    /// Returns the snapshot for the data plane.
    pub fn snapshot(&self) -> &RoutingSnapshot {
        &self.snapshot
    }
}

/// Sets the other nodes of each function in `local`: those that take calls, and on which the
/// function's policy permits it. A node cannot attract calls for other functions.
///
/// Takes time for what differs from `previous`: functions of the own snapshot, functions of a node,
/// and all functions of a node that goes up or down. The snapshot's version grows by one if any
/// function, or the list of reachable nodes differs.
pub fn merge_routes(
    local: &RoutingSnapshot,
    peers: &PeerStates,
    previous: Option<&MergedRoutes>,
) -> MergedRoutes {
    let empty = MergedRoutes::default();
    let previous = previous.unwrap_or(&empty);
    let mut touched = BTreeSet::new();
    let local_changes = local.functions.changes_since(&previous.local.functions);
    touched.extend(local_changes.map(|change| change.id.clone()));
    touch_peers(&mut touched, &previous.peers, peers);
    let functions = update_routes(&previous.snapshot.functions, &touched, local, peers);
    let is_other = functions
        .changes_since(&previous.snapshot.functions)
        .next()
        .is_some();
    let nodes = reachable_nodes(peers, &previous.snapshot.nodes);
    let has_other_nodes = nodes != previous.snapshot.nodes;
    let version = previous.snapshot.version + u64::from(is_other || has_other_nodes);
    MergedRoutes {
        snapshot: RoutingSnapshot {
            version,
            functions,
            nodes,
        },
        local: local.clone(),
        peers: peers.clone(),
    }
}

/// Returns the nodes that answer, also those that take no new calls: open calls go on there. An equal list
/// is the one `before`, so that later comparisons skip it.
fn reachable_nodes(peers: &PeerStates, before: &Arc<[Arc<PeerNode>]>) -> Arc<[Arc<PeerNode>]> {
    let reachable = peers.peers.values().filter(|status| status.is_reachable());
    let nodes: Arc<[_]> = reachable.filter_map(|status| status.node.clone()).collect();
    if nodes == *before {
        before.clone()
    } else {
        nodes
    }
}

/// Adds the functions whose other nodes may differ.
fn touch_peers(touched: &mut BTreeSet<FunctionId>, before: &PeerStates, after: &PeerStates) {
    let names: BTreeSet<&NodeName> = before.peers.keys().chain(after.peers.keys()).collect();
    for name in names {
        let (before, after) = (before.peers.get(name), after.peers.get(name));
        let is_same = match (before, after) {
            (Some(before), Some(after)) => Arc::ptr_eq(before, after),
            _ => false,
        };
        if !is_same {
            touch_peer(touched, callable(before), callable(after));
        }
    }
}

/// A node that takes calls, and its functions.
type CallablePeer<'a> = (&'a Arc<PeerNode>, &'a FunctionMap<FunctionLoad>);

fn callable(status: Option<&Arc<PeerStatus>>) -> Option<CallablePeer<'_>> {
    let status = status?;
    status.callable_node().map(|node| (node, &status.functions))
}

fn touch_peer(
    touched: &mut BTreeSet<FunctionId>,
    before: Option<CallablePeer<'_>>,
    after: Option<CallablePeer<'_>>,
) {
    match (before, after) {
        (Some((old, before)), Some((new, after))) if old == new => {
            touched.extend(after.changes_since(before).map(|change| change.id.clone()));
        }
        (before, after) => {
            let functions = before
                .into_iter()
                .chain(after)
                .map(|(_, functions)| functions);
            touched.extend(functions.flat_map(|all| all.iter().map(|(id, _)| id.clone())));
        }
    }
}

fn update_routes(
    merged: &FunctionMap<FunctionRoute>,
    touched: &BTreeSet<FunctionId>,
    local: &RoutingSnapshot,
    peers: &PeerStates,
) -> FunctionMap<FunctionRoute> {
    let mut updated = merged.clone();
    for id in touched {
        match local.functions.get(id) {
            Some(route) => {
                let route = with_remotes(route, peers);
                // An equal route keeps its place, so that later comparisons skip it.
                if updated.get(id) != Some(&route) {
                    updated.insert(id.clone(), route);
                }
            }
            None => drop(updated.remove(id)),
        }
    }
    updated
}

fn with_remotes(route: &Arc<FunctionRoute>, peers: &PeerStates) -> Arc<FunctionRoute> {
    let remotes: Vec<RemoteInstances> = peers
        .peers
        .iter()
        .filter(|(name, _)| route.policy.runs_on(name))
        .filter_map(|(_, status)| {
            let (node, functions) = callable(Some(status))?;
            let (node, load) = (node.clone(), **functions.get(&route.id)?);
            Some(RemoteInstances { node, load })
        })
        .collect();
    if route.remotes == remotes {
        return route.clone();
    }
    let mut route = FunctionRoute::clone(route);
    route.remotes = remotes;
    Arc::new(route)
}

#[cfg(test)]
mod tests;
