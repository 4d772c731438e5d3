//! Functions by the addresses of their instances and their own. Pure.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};

use nearpath_types::{FunctionId, InstanceState, RoutingSnapshot};

use super::drop_reason::DropReason;
use super::flow_table::{FlowKey, FlowParties};

/// Port of watchdogs, which believe what the node tells them (`WATCHDOG_PORT` of `bpf/vip.c`).
const PLATFORM_PORT: u16 = 8080;

/// Index of one snapshot: a search of the snapshot would cost each refused datagram a look at all instances.
#[derive(Debug, Default)]
pub(super) struct AddressIndex {
    /// Version of the snapshot.
    pub(super) version: u64,
    instances: HashMap<Ipv4Addr, FunctionId>,
    functions: HashMap<Ipv4Addr, FunctionId>,
}

impl AddressIndex {
    pub(super) fn new(snapshot: &RoutingSnapshot) -> Self {
        let mut index = Self {
            version: snapshot.version,
            ..Self::default()
        };
        for route in snapshot.functions.values() {
            // An instance that starts or drains may call; a frozen one answers nothing.
            let running = route
                .instances
                .iter()
                .filter(|one| one.state != InstanceState::Frozen);
            let eips = running.filter_map(|one| ipv4(one.addr.ip()));
            let instances = eips.map(|eip| (eip, route.id.clone()));
            index.instances.extend(instances);
            let own = route.address.map(|own| (own.v4, route.id.clone()));
            index.functions.extend(own);
        }
        index
    }

    /// Returns the functions of a new flow, which must be declared.
    ///
    /// # Errors
    /// Returns the reason when its datagrams are dropped, and what is known of its functions.
    pub(super) fn admit(
        &self,
        snapshot: &RoutingSnapshot,
        key: &FlowKey,
    ) -> Result<FlowParties, (DropReason, Option<FunctionId>)> {
        let caller = self.instances.get(key.source.ip());
        let caller = caller.ok_or((DropReason::UnknownCaller, None))?;
        let callee = self.functions.get(key.destination.ip());
        let callee = callee.ok_or((DropReason::NotDeployed, Some(caller.clone())))?;
        let parties = FlowParties {
            caller: caller.clone(),
            callee: callee.clone(),
        };
        let runs_here = snapshot
            .functions
            .get(callee)
            .is_some_and(|route| route.runs_here);
        // The kernel has checked the edge, but it may have been removed since.
        let reason = if !is_declared(snapshot, &parties) {
            DropReason::NotDeclared
        } else if key.destination.port() == PLATFORM_PORT {
            DropReason::PlatformPort
        } else if !runs_here {
            DropReason::OtherNodes
        } else {
            return Ok(parties);
        };
        Err((reason, Some(callee.clone())))
    }

    /// Returns whether a flow may go on: its caller's instance lives, its edge is declared, and so does the
    /// instance that it is forwarded to.
    pub(super) fn is_current(
        &self,
        snapshot: &RoutingSnapshot,
        key: &FlowKey,
        parties: &FlowParties,
        instance: Option<Ipv4Addr>,
    ) -> bool {
        // The functions, too: an address may belong to another one by now.
        let belongs = |eip: &Ipv4Addr, function| self.instances.get(eip) == Some(function);
        belongs(key.source.ip(), &parties.caller)
            && self.functions.get(key.destination.ip()) == Some(&parties.callee)
            && is_declared(snapshot, parties)
            && instance.is_none_or(|eip| belongs(&eip, &parties.callee))
    }
}

/// Returns the ready instances of a function.
pub(super) fn ready_instances(snapshot: &RoutingSnapshot, function: &FunctionId) -> Vec<Ipv4Addr> {
    let instances = snapshot.functions.get(function).into_iter();
    let instances = instances.flat_map(|route| &route.instances);
    let ready = instances.filter(|one| one.state == InstanceState::Ready);
    ready.filter_map(|one| ipv4(one.addr.ip())).collect()
}

fn is_declared(snapshot: &RoutingSnapshot, parties: &FlowParties) -> bool {
    let caller = snapshot.functions.get(&parties.caller);
    caller.is_some_and(|caller| caller.policy.calls.contains(&parties.callee))
}

fn ipv4(address: IpAddr) -> Option<Ipv4Addr> {
    match address {
        IpAddr::V4(v4) => Some(v4),
        IpAddr::V6(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_types::policy::CallTransport;
    use nearpath_types::{
        FunctionPolicy, FunctionRoute, InstanceAddr, InstanceId, InstanceLocality, InstanceRoute,
        VirtualAddress,
    };
    use std::net::SocketAddrV4;
    use std::sync::Arc;

    fn route(name: &str, number: u8, calls: &[&str], instances: &[u8]) -> FunctionRoute {
        let instance = |&number: &u8| InstanceRoute {
            id: InstanceId(number.into()),
            addr: InstanceAddr(([10, 62, 0, number], 8080).into()),
            locality: InstanceLocality::SameNode,
            state: match number % 2 {
                0 => InstanceState::Ready,
                _ => InstanceState::Starting,
            },
            quic: None,
            transport: CallTransport::Auto,
            server: None,
        };
        FunctionRoute {
            id: name.parse().unwrap(),
            address: Some(VirtualAddress {
                v4: [10, 60, 0, number].into(),
                v6: "fd00::1".parse().unwrap(),
            }),
            policy: Arc::new(FunctionPolicy {
                calls: calls.iter().map(|name| name.parse().unwrap()).collect(),
                ..FunctionPolicy::default()
            }),
            replicas: 1,
            instances: instances.iter().map(instance).collect(),
            runs_here: name != "away",
            remotes: Vec::new(),
            start_failure: None,
        }
    }

    /// `cart` with instances 2 and 3 calls `store` and `away`.
    fn snapshot(store: &[u8], calls: &[&str]) -> RoutingSnapshot {
        let functions = [
            route("cart", 2, calls, &[2, 3]),
            route("store", 3, &[], store),
            route("away", 4, &[], &[]),
        ];
        RoutingSnapshot {
            version: 1,
            nodes: Arc::default(),
            functions: functions.into_iter().collect(),
        }
    }

    fn key(instance: u8, function: u8, port: u16) -> FlowKey {
        FlowKey {
            source: SocketAddrV4::new([10, 62, 0, instance].into(), 5000),
            destination: SocketAddrV4::new([10, 60, 0, function].into(), port),
        }
    }

    #[test]
    fn declared_callees_that_run_here_are_admitted() {
        let snapshot = snapshot(&[5, 6, 8], &["store", "away"]);
        let index = AddressIndex::new(&snapshot);
        let store = "store".parse().unwrap();
        for (key, expected) in [
            (key(2, 3, 7000), Ok("store")),
            // An instance that starts may call.
            (key(3, 3, 7000), Ok("store")),
            (key(9, 3, 7000), Err(DropReason::UnknownCaller)),
            (key(2, 9, 7000), Err(DropReason::NotDeployed)),
            (key(5, 2, 7000), Err(DropReason::NotDeclared)),
            (key(2, 3, 8080), Err(DropReason::PlatformPort)),
            (key(2, 4, 7000), Err(DropReason::OtherNodes)),
        ] {
            let admitted = index.admit(&snapshot, &key);
            let admitted = admitted.map(|parties| parties.callee);
            let expected = expected.map(|name| name.parse().unwrap());
            assert_eq!(admitted.map_err(|(reason, _)| reason), expected, "{key:?}");
        }
        let ready = ready_instances(&snapshot, &store);
        assert_eq!(ready, [[10, 62, 0, 6], [10, 62, 0, 8]].map(Ipv4Addr::from));
    }

    #[test]
    fn a_flow_ends_with_each_of_its_parts() {
        let calls = ["store"];
        let (flow, instance) = (key(2, 3, 7000), Some([10, 62, 0, 6].into()));
        let before = snapshot(&[6], &calls);
        let parties = AddressIndex::new(&before).admit(&before, &flow).unwrap();
        let is_current = |snapshot: &RoutingSnapshot, flow: &FlowKey, instance| {
            AddressIndex::new(snapshot).is_current(snapshot, flow, &parties, instance)
        };
        assert!(is_current(&before, &flow, instance));
        let scaled = snapshot(&[8], &calls);
        assert!(
            !is_current(&scaled, &flow, instance),
            "its instance has ended"
        );
        assert!(is_current(&scaled, &flow, None), "it waits");
        assert!(
            !is_current(&snapshot(&[6], &[]), &flow, instance),
            "no edge"
        );
        assert!(
            !is_current(&before, &key(9, 3, 7000), instance),
            "no caller"
        );
        assert!(
            !is_current(&before, &key(2, 9, 7000), instance),
            "no callee"
        );
        // Another function has the instance's address.
        assert!(!is_current(&before, &flow, Some([10, 62, 0, 2].into())));
    }
}
