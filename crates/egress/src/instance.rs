//! An instance whose connections leave through the egress proxy.

use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;

use nearpath_connpool::destination::EgressDestination;
use nearpath_dbproxy::ClientInstance;
use nearpath_types::Eip;
use nearpath_types::egress::EgressHost;

/// Identity and destinations of one instance.
#[derive(Debug, Clone)]
pub struct EgressInstance {
    /// The instance and its function.
    pub caller: Rc<ClientInstance>,
    /// The source address of its packets.
    pub eip: Eip,
    /// The destinations that its function declared.
    pub destinations: Vec<Rc<EgressDestination>>,
}

impl EgressInstance {
    /// Returns the address assigned to a declared name.
    pub(crate) fn address_for_name(&self, name: &str) -> Option<Ipv4Addr> {
        let is_named = |to: &&Rc<EgressDestination>| matches!(&to.egress.host, EgressHost::Name(own) if own == name);
        match self.destinations.iter().find(is_named)?.visible_ip {
            IpAddr::V4(address) => Some(address),
            IpAddr::V6(_) => None,
        }
    }
}
