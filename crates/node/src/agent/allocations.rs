//! Ids, addresses and ports that an instance holds for its lifetime.

use std::net::{Ipv4Addr, SocketAddr};

use nearpath_types::{Eip, InstanceAddr, InstanceId};

use crate::allocators::{self, EipAllocator, InstanceIdAllocator, NumberRing, PortAllocator};
use crate::instance::variables::{self, LoopbackPorts};

/// Maximum number of instances on one node. As many user ids are reserved.
const MAX_INSTANCES: u32 = 65_536;

/// Resources of one instance.
#[derive(Debug, Clone, Copy)]
pub(super) struct InstanceAllocation {
    pub(super) id: InstanceId,
    pub(super) uid: u32,
    /// Address of its network; `None` if it shares the machine's network.
    pub(super) eip: Option<Eip>,
    /// Address at which it is called.
    pub(super) addr: InstanceAddr,
    /// Ports, if it shares the machine's network.
    pub(super) ports: Option<LoopbackPorts>,
}

/// The allocators of a node.
pub(crate) struct Allocations {
    ids: InstanceIdAllocator,
    eips: EipAllocator,
    uids: NumberRing,
    ports: PortAllocator,
}

impl Allocations {
    pub(crate) fn new(ids: InstanceIdAllocator, eips: EipAllocator) -> Self {
        Self {
            ids,
            eips,
            uids: NumberRing::new(allocators::FIRST_UID, MAX_INSTANCES),
            ports: PortAllocator::default(),
        }
    }

    /// Allocates the resources of one instance.
    ///
    /// # Errors
    /// Fails when one is exhausted; nothing is held then. The text is for the tenant.
    pub(super) fn allocate(&mut self, has_network: bool) -> Result<InstanceAllocation, String> {
        let id = self
            .ids
            .allocate()
            .map_err(|error| format!("the node cannot allocate an instance id: {error}"))?;
        let uid = self
            .uids
            .allocate()
            .ok_or("this node has reached its limit of instances: scale a function down")?;
        let allocation = if has_network {
            self.allocate_on_network(id, uid)
        } else {
            self.allocate_on_loopback(id, uid)
        };
        // Ids are never reused, so only the uid is released.
        allocation.inspect_err(|_| self.uids.release(uid))
    }

    fn allocate_on_network(
        &mut self,
        id: InstanceId,
        uid: u32,
    ) -> Result<InstanceAllocation, String> {
        let eip = self
            .eips
            .allocate()
            .ok_or("the node's network has no free address: scale a function down")?;
        let addr = InstanceAddr(SocketAddr::from((eip.0, variables::WATCHDOG_PORT)));
        Ok(InstanceAllocation {
            id,
            uid,
            eip: Some(eip),
            addr,
            ports: None,
        })
    }

    pub(super) fn release(&mut self, allocation: InstanceAllocation) {
        self.uids.release(allocation.uid);
        allocation
            .eip
            .into_iter()
            .for_each(|eip| self.eips.release(eip));
        if let Some(ports) = allocation.ports {
            self.ports.release(ports.watchdog);
            self.ports.release(ports.upstream);
        }
    }

    fn allocate_on_loopback(
        &mut self,
        id: InstanceId,
        uid: u32,
    ) -> Result<InstanceAllocation, String> {
        let [watchdog, upstream] = self
            .ports
            .allocate_two()
            .map_err(|error| format!("the machine has no free port: {error}"))?;
        Ok(InstanceAllocation {
            id,
            uid,
            eip: None,
            addr: InstanceAddr(SocketAddr::from((Ipv4Addr::LOCALHOST, watchdog))),
            ports: Some(LoopbackPorts { watchdog, upstream }),
        })
    }
}
