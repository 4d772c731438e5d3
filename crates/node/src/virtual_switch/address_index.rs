//! Functions of a snapshot by the addresses of their instances and their own, and the permission
//! to call them. Pure.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use std::sync::Arc;

use nearpath_types::{FunctionId, FunctionRoute, InstanceState, RoutingSnapshot};

use crate::instance::variables::WATCHDOG_PORT;

/// Index of one snapshot: a search would cost each connection a look at all instances.
#[derive(Debug, Default)]
pub(super) struct AddressIndex {
    pub(super) snapshot: Arc<RoutingSnapshot>,
    instances: HashMap<Ipv4Addr, IndexedInstance>,
    functions: HashMap<Ipv4Addr, Arc<FunctionRoute>>,
}

#[derive(Debug)]
struct IndexedInstance {
    function: FunctionId,
    is_frozen: bool,
}

/// Reason why a function may not use a virtual address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum AddressRefusal {
    #[error("no function is deployed that has the address {0}")]
    NotDeployed(Ipv4Addr),
    #[error("the caller has no declared edge to {0}")]
    NotDeclared(FunctionId),
    #[error("port {WATCHDOG_PORT} of {0} is the platform's own")]
    PlatformPort(FunctionId),
}

impl AddressIndex {
    pub(super) fn new(snapshot: Arc<RoutingSnapshot>) -> Self {
        let mut index = Self::default();
        for route in snapshot.functions.values() {
            let instances = route.instances.iter().filter_map(|one| {
                let instance = IndexedInstance {
                    function: route.id.clone(),
                    is_frozen: one.state == InstanceState::Frozen,
                };
                // Instances that share the network of the machine have no address of their own.
                Some((ipv4(one.addr.ip())?, instance))
            });
            index.instances.extend(instances);
            let own = route.address.map(|own| (own.v4, route.clone()));
            index.functions.extend(own);
        }
        Self { snapshot, ..index }
    }

    /// Returns the function of a calling instance. An instance in any state may call: one that was
    /// just thawed may do so before the snapshot says so.
    pub(super) fn function_of_instance(&self, eip: Ipv4Addr) -> Option<&FunctionId> {
        self.instances.get(&eip).map(|one| &one.function)
    }

    /// Returns whether the instance at an address is one of a function, and not frozen.
    pub(super) fn answers(&self, eip: Ipv4Addr, function: &FunctionId) -> bool {
        let instance = self.instances.get(&eip);
        instance.is_some_and(|one| one.function == *function && !one.is_frozen)
    }

    /// Returns the function at a virtual address, if `caller` may use this port of it. The kernel
    /// has checked that, but the edge may have been removed since.
    ///
    /// # Errors
    /// Returns the reason of a refusal.
    pub(super) fn admit_caller(
        &self,
        caller: &FunctionId,
        destination: SocketAddrV4,
    ) -> Result<&Arc<FunctionRoute>, AddressRefusal> {
        let address = *destination.ip();
        let callee = self.functions.get(&address);
        let callee = callee.ok_or(AddressRefusal::NotDeployed(address))?;
        let caller = self.snapshot.functions.get(caller);
        // A caller that the snapshot does not have was removed, and its edges with it.
        if !caller.is_some_and(|caller| caller.policy.may_call(&callee.id)) {
            return Err(AddressRefusal::NotDeclared(callee.id.clone()));
        }
        // The watchdog believes what the node tells it, and takes the caller for the node here.
        if destination.port() == WATCHDOG_PORT {
            return Err(AddressRefusal::PlatformPort(callee.id.clone()));
        }
        Ok(callee)
    }

    /// Returns the addresses of a function's ready instances.
    pub(super) fn ready_instances(&self, function: &FunctionId) -> Vec<Ipv4Addr> {
        let route = self.snapshot.functions.get(function);
        route.map_or_else(Vec::new, |route| ready_addresses(route))
    }
}

/// Returns the addresses of a function's ready instances.
pub(super) fn ready_addresses(route: &FunctionRoute) -> Vec<Ipv4Addr> {
    let instances = route.instances.iter();
    let ready = instances.filter(|one| one.state == InstanceState::Ready);
    ready.filter_map(|one| ipv4(one.addr.ip())).collect()
}

/// Returns an address of IPv4. Instances with a network of their own have no other.
pub(super) fn ipv4(address: IpAddr) -> Option<Ipv4Addr> {
    match address {
        IpAddr::V4(v4) => Some(v4),
        IpAddr::V6(_) => None,
    }
}

#[cfg(test)]
pub(super) mod sample {
    use super::*;
    use nearpath_types::policy::CallTransport;
    use nearpath_types::{
        FunctionPolicy, InstanceAddr, InstanceId, InstanceLocality, InstanceRoute, VirtualAddress,
    };

    /// Number of an instance that is frozen. Else those with even numbers are ready.
    pub(in crate::virtual_switch) const FROZEN: u8 = 100;

    fn route(name: &str, number: u8, calls: &[&str], instances: &[u8]) -> FunctionRoute {
        let instance = |&number: &u8| InstanceRoute {
            id: InstanceId(number.into()),
            addr: InstanceAddr(([10, 62, 0, number], 8080).into()),
            locality: InstanceLocality::SameNode,
            state: match number {
                FROZEN => InstanceState::Frozen,
                even if even % 2 == 0 => InstanceState::Ready,
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
    pub(in crate::virtual_switch) fn snapshot(
        store: &[u8],
        calls: &[&str],
    ) -> Arc<RoutingSnapshot> {
        let functions = [
            route("cart", 2, calls, &[2, 3]),
            route("store", 3, &[], store),
            route("away", 4, &[], &[]),
        ];
        Arc::new(RoutingSnapshot {
            version: 1,
            nodes: Arc::default(),
            functions: functions.into_iter().collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::sample::{FROZEN, snapshot};
    use super::*;

    fn function(name: &str) -> FunctionId {
        name.parse().unwrap()
    }

    #[test]
    fn declared_callees_are_admitted_wherever_they_run() {
        let index = AddressIndex::new(snapshot(&[], &["store", "away"]));
        let admit = |caller: &str, number: u8, port| {
            let destination = SocketAddrV4::new([10, 60, 0, number].into(), port);
            let admitted = index.admit_caller(&function(caller), destination);
            admitted.map(|route| route.id.clone())
        };
        assert_eq!(admit("cart", 3, 6379), Ok(function("store")));
        assert_eq!(admit("cart", 4, 80), Ok(function("away")));
        let undeclared = AddressRefusal::NotDeclared(function("cart"));
        assert_eq!(admit("store", 2, 80), Err(undeclared));
        let platform = AddressRefusal::PlatformPort(function("store"));
        assert_eq!(admit("cart", 3, 8080), Err(platform));
        let absent = AddressRefusal::NotDeployed([10, 60, 0, 9].into());
        assert_eq!(admit("cart", 9, 6379), Err(absent));
    }

    #[test]
    fn a_frozen_instance_calls_and_does_not_answer() {
        let index = AddressIndex::new(snapshot(&[6, FROZEN], &[]));
        let (ready, frozen) = ([10, 62, 0, 6].into(), [10, 62, 0, FROZEN].into());
        let store = function("store");
        assert_eq!(index.function_of_instance(frozen), Some(&store));
        assert!(index.answers(ready, &store) && !index.answers(ready, &function("cart")));
        assert!(!index.answers(frozen, &store));
    }
}
