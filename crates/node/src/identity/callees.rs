//! Callees that an instance may call directly: pure, from the snapshot.

use std::collections::BTreeMap;

use nearpath_types::frames::{CalleeEntry, CalleePeer};
use nearpath_types::policy::CallTransport;
use nearpath_types::{
    FunctionId, FunctionPolicy, FunctionRoute, InstanceAddr, InstanceRoute, InstanceState,
    RoutingSnapshot,
};

/// Returns the declared callees over QUIC, with their named instances that are or were ready and
/// reachable. Those of other nodes (`remote`) take new calls only while no instance here is ready.
pub(super) fn reachable_callees(
    snapshot: &RoutingSnapshot,
    caller: &FunctionId,
    reached: impl Fn(InstanceAddr) -> bool,
    remote: &BTreeMap<FunctionId, Vec<CalleePeer>>,
) -> Vec<CalleeEntry> {
    let peer = |one: &InstanceRoute| {
        let name = one
            .quic
            .as_deref()
            .filter(|_| one.transport == CallTransport::Quic)?;
        // A draining one stays listed as leaving: its open calls need their connection.
        if one.state == InstanceState::Starting || !reached(one.addr) {
            return None;
        }
        let leaving = one.state == InstanceState::Draining;
        Some(CalleePeer {
            name: name.to_owned(),
            addr: one.addr.0,
            locality: one.locality,
            leaving,
        })
    };
    let Some(policy) = find_route(snapshot, caller).map(|route| &route.policy) else {
        return Vec::new();
    };
    let callee = |route: &FunctionRoute| CalleeEntry {
        function: route.id.clone(),
        aliases: aliases_of(policy, &route.id),
        zero_rtt: route.policy.zero_rtt,
        peers: {
            let local = route.instances.iter().filter_map(peer);
            local.chain(remote_of(route, remote)).collect()
        },
    };
    declared_routes(snapshot, caller).map(callee).collect()
}

/// Returns a callee's instances on other nodes. Local ones come first, as at the gateway: others
/// then finish their calls.
fn remote_of(
    route: &FunctionRoute,
    remote: &BTreeMap<FunctionId, Vec<CalleePeer>>,
) -> impl Iterator<Item = CalleePeer> {
    let mut instances = route.instances.iter();
    let is_here = instances.any(|one| one.state == InstanceState::Ready);
    let peers = remote.get(&route.id).into_iter().flatten();
    peers.map(move |peer| CalleePeer {
        leaving: peer.leaving || is_here,
        ..peer.clone()
    })
}

/// Returns the addresses of these callees' instances in any state: calls to draining ones still
/// end.
pub(super) fn callee_addresses<'a>(
    snapshot: &'a RoutingSnapshot,
    caller: &FunctionId,
) -> impl Iterator<Item = InstanceAddr> + use<'a> {
    let all = declared_routes(snapshot, caller).flat_map(|route| &route.instances);
    all.filter(|one| one.quic.is_some()).map(|one| one.addr)
}

fn declared_routes<'a>(
    snapshot: &'a RoutingSnapshot,
    caller: &FunctionId,
) -> impl Iterator<Item = &'a FunctionRoute> + use<'a> {
    let policy = find_route(snapshot, caller).map(|route| &route.policy);
    let declared = policy
        .into_iter()
        .flat_map(|policy| &policy.calls)
        .filter_map(|callee| find_route(snapshot, callee));
    declared.filter(|route| route.policy.transport == CallTransport::Quic)
}

fn find_route<'a>(
    snapshot: &'a RoutingSnapshot,
    function: &FunctionId,
) -> Option<&'a FunctionRoute> {
    snapshot.functions.get(function).map(|route| &**route)
}

fn aliases_of(policy: &FunctionPolicy, callee: &FunctionId) -> Vec<FunctionId> {
    let aliases = policy.aliases.iter().filter(|(_, meant)| meant == callee);
    aliases.map(|(alias, _)| alias.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use nearpath_types::{InstanceId, InstanceLocality};

    fn route_of(
        id: &str,
        calls: &[&str],
        transport: CallTransport,
        instances: &[(u64, InstanceState, bool)],
    ) -> FunctionRoute {
        let policy = FunctionPolicy {
            calls: calls.iter().map(|name| name.parse().unwrap()).collect(),
            aliases: vec![("other".parse().unwrap(), "b".parse().unwrap())],
            transport,
            ..FunctionPolicy::default()
        };
        let instance = |&(number, state, named): &(u64, InstanceState, bool)| InstanceRoute {
            id: InstanceId(number),
            addr: InstanceAddr(([10, 62, 0, number as u8], 8080).into()),
            locality: InstanceLocality::SameNode,
            state,
            quic: named.then(|| format!("i{number}").into()),
            transport,
            server: None,
        };
        FunctionRoute {
            address: None,
            id: id.parse().unwrap(),
            policy: Arc::new(policy),
            replicas: 1,
            instances: instances.iter().map(instance).collect(),
            runs_here: true,
            remotes: Vec::new(),
            start_failure: None,
        }
    }

    fn test_snapshot() -> RoutingSnapshot {
        use InstanceState::{Draining, Ready, Starting};
        let instances = [
            (1, Ready, true),
            (2, Ready, false),
            (3, Starting, true),
            (4, Draining, true),
            (5, Ready, true),
        ];
        let functions = [
            route_of("a", &["b", "plain", "nowhere"], CallTransport::Quic, &[]),
            route_of("b", &[], CallTransport::Quic, &instances),
            route_of("c", &[], CallTransport::Quic, &instances),
            route_of("plain", &[], CallTransport::Auto, &instances),
        ];
        RoutingSnapshot {
            version: 1,
            nodes: Arc::default(),
            functions: functions.into_iter().collect(),
        }
    }

    #[test]
    fn only_ready_reachable_declared_instances_are_listed() {
        let is_near = |addr: InstanceAddr| addr.0.ip().to_string() != "10.62.0.5";
        let callees = reachable_callees(
            &test_snapshot(),
            &"a".parse().unwrap(),
            is_near,
            &BTreeMap::new(),
        );
        assert_eq!(
            callees.len(),
            1,
            "c is not declared, plain is called otherwise, nowhere is not deployed"
        );
        assert_eq!(
            (callees[0].function.to_string(), callees[0].aliases.len()),
            ("b.openfaas-fn".to_owned(), 1)
        );
        let peer = |number: u8, leaving| CalleePeer {
            name: format!("i{number}"),
            addr: ([10, 62, 0, number], 8080).into(),
            locality: InstanceLocality::SameNode,
            leaving,
        };
        assert_eq!(callees[0].peers, [peer(1, false), peer(4, true)]);
    }

    #[test]
    fn instances_here_come_before_those_of_other_nodes() {
        let elsewhere = CalleePeer {
            name: "i1.b.up.nearpath".to_owned(),
            addr: ([10, 0, 0, 2], 8501).into(),
            locality: InstanceLocality::OtherNode,
            leaving: false,
        };
        let remote = [("b".parse().unwrap(), vec![elsewhere.clone()])].into();
        let caller = "a".parse().unwrap();
        let last_peer = |snapshot: &RoutingSnapshot| {
            let callees = reachable_callees(snapshot, &caller, |_| false, &remote);
            callees[0].peers.last().cloned().unwrap()
        };
        let mut snapshot = test_snapshot();
        assert!(last_peer(&snapshot).leaving);
        let without = route_of("b", &[], CallTransport::Quic, &[]);
        snapshot.functions.insert(without.id.clone(), without);
        assert_eq!(last_peer(&snapshot), elsewhere);
    }

    #[test]
    fn draining_instances_keep_their_address() {
        let snapshot = test_snapshot();
        let all: Vec<_> = callee_addresses(&snapshot, &"a".parse().unwrap())
            .map(|addr| addr.to_string())
            .collect();
        assert_eq!(
            all,
            [
                "10.62.0.1:8080",
                "10.62.0.3:8080",
                "10.62.0.4:8080",
                "10.62.0.5:8080"
            ]
        );
    }

    #[test]
    fn a_function_without_calls_has_no_callees() {
        assert_eq!(
            reachable_callees(
                &test_snapshot(),
                &"b".parse().unwrap(),
                |_| true,
                &BTreeMap::new()
            ),
            []
        );
        assert_eq!(
            reachable_callees(
                &test_snapshot(),
                &"unknown".parse().unwrap(),
                |_| true,
                &BTreeMap::new()
            ),
            []
        );
    }
}
