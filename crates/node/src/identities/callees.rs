//! Whom an instance may call directly: pure, from what everybody may know.

use nearpath_types::frames::{Callee, Peer};
use nearpath_types::policy::Transport;
use nearpath_types::{FunctionId, FunctionRoute, Instance, InstanceAddr, InstanceState, Policy, Snapshot};

/// The functions that `caller` declares and that are called over QUIC, with those of their instances that are or were ready, that say who they are and to
/// which there is a way.
pub(super) fn callees(snapshot: &Snapshot, caller: &FunctionId, reached: impl Fn(InstanceAddr) -> bool) -> Vec<Callee> {
    let peer = |one: &Instance| {
        let name = one.quic.as_deref().filter(|_| one.transport == Transport::Quic)?;
        if one.state == InstanceState::Starting || !reached(one.addr) {
            return None;
        }
        Some(Peer { name: name.to_owned(), addr: one.addr.0, leaving: one.state == InstanceState::Draining })
    };
    let Some(policy) = find(snapshot, caller).map(|route| &route.policy) else { return Vec::new() };
    let callee = |route: &FunctionRoute| Callee {
        function: route.id.clone(),
        aliases: aliases(policy, &route.id),
        zero_rtt: route.policy.zero_rtt,
        peers: route.instances.iter().filter_map(peer).collect(),
    };
    declared(snapshot, caller).map(callee).collect()
}

/// Where the instances are that it may call so, whatever their state: calls to one that is going away still end.
pub(super) fn addresses<'a>(
    snapshot: &'a Snapshot,
    caller: &FunctionId,
) -> impl Iterator<Item = InstanceAddr> + use<'a> {
    let all = declared(snapshot, caller).flat_map(|route| &route.instances);
    all.filter(|one| one.quic.is_some()).map(|one| one.addr)
}

fn declared<'a>(snapshot: &'a Snapshot, caller: &FunctionId) -> impl Iterator<Item = &'a FunctionRoute> + use<'a> {
    let policy = find(snapshot, caller).map(|route| &route.policy);
    let declared = policy.into_iter().flat_map(|policy| &policy.calls).filter_map(|callee| find(snapshot, callee));
    declared.filter(|route| route.policy.transport == Transport::Quic)
}

fn find<'a>(snapshot: &'a Snapshot, function: &FunctionId) -> Option<&'a FunctionRoute> {
    let all = &snapshot.functions; // in the order of their ids
    all.binary_search_by(|route| route.id.cmp(function)).ok().map(|at| &all[at])
}

fn aliases(policy: &Policy, callee: &FunctionId) -> Vec<FunctionId> {
    let theirs = policy.aliases.iter().filter(|(_, meant)| meant == callee);
    theirs.map(|(alias, _)| alias.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use nearpath_types::InstanceId;

    fn route(
        id: &str,
        calls: &[&str],
        transport: Transport,
        instances: &[(u64, InstanceState, bool)],
    ) -> FunctionRoute {
        let policy = Policy {
            calls: calls.iter().map(|name| name.parse().unwrap()).collect(),
            aliases: vec![("other".parse().unwrap(), "b".parse().unwrap())],
            transport,
            ..Policy::default()
        };
        let instance = |&(number, state, named): &(u64, InstanceState, bool)| Instance {
            id: InstanceId(number),
            addr: InstanceAddr(([10, 62, 0, number as u8], 8080).into()),
            state,
            quic: named.then(|| format!("i{number}").into()),
            transport,
        };
        FunctionRoute {
            id: id.parse().unwrap(),
            policy: Arc::new(policy),
            replicas: 1,
            instances: instances.iter().map(instance).collect(),
            trouble: None,
        }
    }

    fn snapshot() -> Snapshot {
        use InstanceState::{Draining, Ready, Starting};
        let instances =
            [(1, Ready, true), (2, Ready, false), (3, Starting, true), (4, Draining, true), (5, Ready, true)];
        let functions = vec![
            route("a", &["b", "plain", "nowhere"], Transport::Quic, &[]),
            route("b", &[], Transport::Quic, &instances),
            route("c", &[], Transport::Quic, &instances),
            route("plain", &[], Transport::Auto, &instances),
        ];
        Snapshot { version: 1, functions }
    }

    #[test]
    fn ready_instances_of_declared_functions_to_which_there_is_a_way() {
        let near = |addr: InstanceAddr| addr.0.ip().to_string() != "10.62.0.5";
        let told = callees(&snapshot(), &"a".parse().unwrap(), near);
        assert_eq!(told.len(), 1, "c is not declared, plain is called otherwise, nowhere is not deployed");
        assert_eq!((told[0].function.to_string(), told[0].aliases.len()), ("b.openfaas-fn".to_owned(), 1));
        let peer = |number: u8, leaving| Peer {
            name: format!("i{number}"),
            addr: ([10, 62, 0, number], 8080).into(),
            leaving,
        };
        assert_eq!(told[0].peers, [peer(1, false), peer(4, true)]);
    }

    #[test]
    fn a_way_lasts_as_long_as_the_instance() {
        let snapshot = snapshot();
        let all: Vec<_> = addresses(&snapshot, &"a".parse().unwrap()).map(|addr| addr.to_string()).collect();
        assert_eq!(all, ["10.62.0.1:8080", "10.62.0.3:8080", "10.62.0.4:8080", "10.62.0.5:8080"]);
    }

    #[test]
    fn who_declares_nothing_calls_nobody() {
        assert_eq!(callees(&snapshot(), &"b".parse().unwrap(), |_| true), []);
        assert_eq!(callees(&snapshot(), &"unknown".parse().unwrap(), |_| true), []);
    }
}
