//! Instances on other nodes that an instance may call, and that may call it: pure, from the own
//! snapshot and what other nodes announce.
//!
//! Edges and places come from the own snapshot alone. Another node only says which instances it has.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use nearpath_types::direct::{
    DirectInstance, DirectPeerNode, DirectPeerNodes, ForeignAuthority, split_incarnation,
    trust_domain_of,
};
use nearpath_types::frames::CalleePeer;
use nearpath_types::policy::CallTransport;
use nearpath_types::{FunctionId, FunctionPolicy, InstanceLocality, NodeName, RoutingSnapshot};

/// Peers of one function's instances on other nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct RemotePeers {
    /// Instances of each callee.
    pub(super) callees: BTreeMap<FunctionId, Vec<CalleePeer>>,
    /// Authorities of these nodes, with the instances that may call.
    pub(super) authorities: Vec<ForeignAuthority>,
    /// Addresses of all of these instances.
    pub(super) addresses: BTreeSet<SocketAddr>,
}

/// Returns the peers of `function` on other nodes.
pub(super) fn remote_peers(
    snapshot: &RoutingSnapshot,
    function: &FunctionId,
    nodes: &DirectPeerNodes,
) -> RemotePeers {
    let mut peers = RemotePeers::default();
    let Some(own) = quic_policy(snapshot, function) else {
        return peers;
    };
    for (node, announced) in nodes {
        let mut authority = ForeignAuthority {
            trust_domain: trust_domain_of(node),
            certificate: announced.announced.authority.to_vec(),
            callers: BTreeMap::new(),
        };
        let before = peers.addresses.len();
        for (name, instance) in placed_instances(snapshot, node, announced) {
            let is_callee = own.may_call(&instance.function);
            let is_caller = quic_policy(snapshot, &instance.function)
                .is_some_and(|policy| policy.may_call(function));
            if is_callee {
                let peer = callee_peer(name, instance, announced);
                let callees = peers.callees.entry(instance.function.clone());
                callees.or_default().push(peer);
            }
            if is_caller {
                let callers = &mut authority.callers;
                callers.insert(name.clone(), instance.function.clone());
            }
            if is_callee || is_caller {
                peers.addresses.insert(announced.address_of(instance));
            }
        }
        // Nodes without an edge are not trusted at all.
        if peers.addresses.len() > before {
            peers.authorities.push(authority);
        }
    }
    peers
}

/// Returns the announced instances of functions that may run on the node, whose names are its own.
fn placed_instances<'a>(
    snapshot: &'a RoutingSnapshot,
    node: &'a NodeName,
    announced: &'a DirectPeerNode,
) -> impl Iterator<Item = (&'a String, &'a DirectInstance)> {
    let all = announced.announced.instances.iter();
    all.filter(move |(name, instance)| {
        let is_own = split_incarnation(name).is_some_and(|(_, owner)| owner == node.as_str());
        let policy = quic_policy(snapshot, &instance.function);
        is_own && policy.is_some_and(|policy| policy.runs_on(node))
    })
}

/// Returns the policy of a function that asks for QUIC.
fn quic_policy<'a>(
    snapshot: &'a RoutingSnapshot,
    function: &FunctionId,
) -> Option<&'a FunctionPolicy> {
    let policy = &*snapshot.functions.get(function)?.policy;
    (policy.transport == CallTransport::Quic).then_some(policy)
}

fn callee_peer(name: &str, instance: &DirectInstance, node: &DirectPeerNode) -> CalleePeer {
    CalleePeer {
        name: name.to_owned(),
        addr: node.address_of(instance),
        locality: InstanceLocality::OtherNode,
        // Its open calls may go on while its node does not answer.
        leaving: instance.leaving || !node.is_connected,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_types::FunctionRoute;
    use nearpath_types::direct::DirectNode;
    use std::sync::Arc;

    fn route(
        name: &str,
        calls: &[&str],
        nodes: &[&str],
        transport: CallTransport,
    ) -> FunctionRoute {
        FunctionRoute {
            address: None,
            id: name.parse().unwrap(),
            policy: Arc::new(FunctionPolicy {
                calls: calls.iter().map(|name| name.parse().unwrap()).collect(),
                nodes: nodes.iter().map(|name| name.parse().unwrap()).collect(),
                transport,
                ..FunctionPolicy::default()
            }),
            replicas: 1,
            instances: Vec::new(),
            runs_here: true,
            remotes: Vec::new(),
            start_failure: None,
        }
    }

    fn snapshot() -> RoutingSnapshot {
        let functions = [
            route("front", &["cart", "plain"], &["a"], CallTransport::Quic),
            route("cart", &["store"], &["b"], CallTransport::Quic),
            route("store", &[], &["b", "c"], CallTransport::Quic),
            route("plain", &["store"], &["b"], CallTransport::Auto),
        ];
        RoutingSnapshot {
            functions: functions.into_iter().collect(),
            ..RoutingSnapshot::default()
        }
    }

    fn node(last: u8, instances: &[(&str, &str, u16)]) -> DirectPeerNode {
        let instance = |(name, function, port): &(&str, &str, u16)| {
            let instance = DirectInstance {
                function: function.parse().unwrap(),
                port: *port,
                leaving: false,
            };
            ((*name).to_owned(), instance)
        };
        DirectPeerNode {
            ip: [10, 0, 0, last].into(),
            announced: Arc::new(DirectNode {
                authority: vec![last].into(),
                instances: instances.iter().map(instance).collect(),
            }),
            is_connected: true,
        }
    }

    fn peers_of(function: &str, nodes: &[(&str, DirectPeerNode)]) -> RemotePeers {
        let nodes = nodes.iter();
        let nodes = nodes.map(|(name, node)| (name.parse().unwrap(), node.clone()));
        remote_peers(&snapshot(), &function.parse().unwrap(), &nodes.collect())
    }

    #[test]
    fn an_edge_has_two_ends() {
        let b = node(2, &[("i1.b.up.nearpath", "cart", 8501)]);
        let front = peers_of("front", &[("b", b.clone())]);
        let callee = &front.callees[&"cart".parse().unwrap()][0];
        assert_eq!(callee.addr, "10.0.0.2:8501".parse().unwrap());
        assert_eq!(callee.locality, InstanceLocality::OtherNode);
        assert!(!callee.leaving && front.authorities[0].callers.is_empty());
        assert_eq!(front.authorities[0].trust_domain, "b.up.nearpath");
        // The callee admits it by name, and does not call back.
        let store = peers_of("store", &[("b", b)]);
        assert!(store.callees.is_empty());
        let callers = [("i1.b.up.nearpath".to_owned(), "cart".parse().unwrap())];
        assert_eq!(store.authorities[0].callers, callers.into());
        assert_eq!(store.addresses, ["10.0.0.2:8501".parse().unwrap()].into());
    }

    #[test]
    fn nobody_is_a_peer_without_a_declared_edge_and_place() {
        let none = RemotePeers::default();
        for (what, name, announced) in [
            ("no edge", "b", ("i1.b.up.nearpath", "store", 8501)),
            ("no place there", "c", ("i1.c.up.nearpath", "cart", 8501)),
            (
                "another node's name",
                "b",
                ("i1.c.up.nearpath", "cart", 8501),
            ),
            (
                "another transport",
                "b",
                ("i1.b.up.nearpath", "plain", 8501),
            ),
            ("not deployed", "b", ("i1.b.up.nearpath", "ghost", 8501)),
        ] {
            let nodes = [(name, node(2, &[announced]))];
            assert_eq!(peers_of("front", &nodes), none, "{what}");
        }
        let b = node(2, &[("i1.b.up.nearpath", "cart", 8501)]);
        assert_eq!(peers_of("plain", &[("b", b)]), none, "it has no identity");
    }

    #[test]
    fn a_node_that_does_not_answer_gets_no_new_calls() {
        let mut b = node(2, &[("i1.b.up.nearpath", "cart", 8501)]);
        b.is_connected = false;
        let front = peers_of("front", &[("b", b)]);
        assert!(front.callees[&"cart".parse().unwrap()][0].leaving);
        assert_eq!(front.addresses.len(), 1, "open calls go on");
    }
}
