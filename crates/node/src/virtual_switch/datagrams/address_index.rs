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
            let eips = route.instances.iter().filter_map(|one| ipv4(one.addr.ip()));
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
