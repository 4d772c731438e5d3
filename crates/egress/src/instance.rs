//! An instance whose connections leave through the egress proxy.

use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;

use nearpath_connpool::destination::Destination;
use nearpath_dbproxy::Caller;
use nearpath_types::Eip;
use nearpath_types::egress::Host;

/// Identity and destinations of one instance.
#[derive(Debug, Clone)]
pub struct EgressInstance {
    /// The instance and its function.
    pub caller: Rc<Caller>,
    /// The source address of its packets.
    pub eip: Eip,
    /// The destinations that its function declared.
    pub destinations: Vec<Rc<Destination>>,
}

impl EgressInstance {
    /// The address that stands for a declared name.
    pub(crate) fn stand_in_for(&self, name: &str) -> Option<Ipv4Addr> {
        let is_named = |to: &&Rc<Destination>| matches!(&to.egress.host, Host::Name(own) if own == name);
        match self.destinations.iter().find(is_named)?.stands {
            IpAddr::V4(address) => Some(address),
            IpAddr::V6(_) => None,
        }
    }
}
