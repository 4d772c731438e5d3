//! The numbers and addresses that an instance holds for its life: its lot.

use std::net::{Ipv4Addr, SocketAddr};

use nearpath_types::{Eip, InstanceAddr, InstanceId};

use crate::ids::{self, Eips, Ids, Ring};
use crate::instance::variables::{self, LoopbackPorts};

/// Instances on one node; the user ids are reserved for so many.
const MOST_INSTANCES: u32 = 65_536;

/// What one instance holds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lot {
    pub(super) id: InstanceId,
    pub(super) uid: u32,
    /// `None`: it shares the machine's network.
    pub(super) eip: Option<Eip>,
    /// Where it is reached.
    pub(super) addr: InstanceAddr,
    /// Set when it shares the machine's network.
    pub(super) ports: Option<LoopbackPorts>,
}

/// Where lots come from.
pub(crate) struct Lots {
    ids: Ids,
    eips: Eips,
    uids: Ring,
}

impl Lots {
    pub(crate) fn new(ids: Ids, eips: Eips) -> Self {
        Self { ids, eips, uids: Ring::new(ids::FIRST_UID, MOST_INSTANCES) }
    }

    /// # Errors
    /// When something has run out; nothing is held then. The text is for the tenant.
    pub(super) fn draw(&mut self, has_network: bool) -> Result<Lot, String> {
        let id = self.ids.take().map_err(|error| format!("the node cannot number the instance: {error}"))?;
        let uid = self.uids.take().ok_or("this node has no room for another instance: scale something down")?;
        let drawn = if has_network { self.with_network(id, uid) } else { on_loopback(id, uid) };
        drawn.inspect_err(|_| self.uids.give_back(uid))
    }

    fn with_network(&mut self, id: InstanceId, uid: u32) -> Result<Lot, String> {
        let eip = self.eips.take().ok_or("the node's network has no free address: scale something down")?;
        let addr = InstanceAddr(SocketAddr::from((eip.0, variables::PORT)));
        Ok(Lot { id, uid, eip: Some(eip), addr, ports: None })
    }

    pub(super) fn give_back(&mut self, lot: Lot) {
        self.uids.give_back(lot.uid);
        lot.eip.into_iter().for_each(|eip| self.eips.give_back(eip));
    }
}

fn on_loopback(id: InstanceId, uid: u32) -> Result<Lot, String> {
    let port = || ids::free_port().map_err(|error| format!("the machine has no free port: {error}"));
    let ports = LoopbackPorts { watchdog: port()?, upstream: port()? };
    let addr = InstanceAddr(SocketAddr::from((Ipv4Addr::LOCALHOST, ports.watchdog)));
    Ok(Lot { id, uid, eip: None, addr, ports: Some(ports) })
}
