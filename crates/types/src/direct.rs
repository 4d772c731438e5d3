//! Instances that watchdogs on other nodes may call directly, as each node announces its own:
//! `contract/node.md`.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::FunctionId;
use crate::node::NodeName;

/// Announcement of a node's directly callable instances.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DirectNode {
    /// Certificate (DER) of the authority of its instances; empty: it has none.
    pub authority: Arc<[u8]>,
    /// Instances by the name of their incarnation, `ID.TRUST-DOMAIN`.
    pub instances: DirectInstances,
}

/// Directly callable instances by name.
pub type DirectInstances = BTreeMap<String, DirectInstance>;

/// A directly callable instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectInstance {
    /// Function that it is an instance of.
    pub function: FunctionId,
    /// Its UDP port on the machine of its node.
    pub port: u16,
    /// Gets no new calls, and finishes its open ones.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub leaving: bool,
}

/// Another node with its last announcement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectPeerNode {
    /// Address of its machine.
    pub ip: IpAddr,
    /// Its last announcement.
    pub announced: Arc<DirectNode>,
    /// The announcement is current. Otherwise its instances get no new calls.
    pub is_connected: bool,
}

/// Other nodes with directly callable instances.
pub type DirectPeerNodes = BTreeMap<NodeName, DirectPeerNode>;

/// Authority of the instances of another node, for one instance of this node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForeignAuthority {
    /// Trust domain for which the authority may sign.
    pub trust_domain: String,
    /// Its certificate, DER.
    pub certificate: Vec<u8>,
    /// Incarnations that may call, with the function of each.
    pub callers: BTreeMap<String, FunctionId>,
}

impl DirectPeerNode {
    /// Returns the address of an instance.
    pub fn address_of(&self, instance: &DirectInstance) -> SocketAddr {
        SocketAddr::new(self.ip, instance.port)
    }
}

/// End of the trust domain of each node.
const TRUST_DOMAIN_SUFFIX: &str = ".up.nearpath";

/// Returns the trust domain of the instances of a node.
pub fn trust_domain_of(node: &NodeName) -> String {
    format!("{node}{TRUST_DOMAIN_SUFFIX}")
}

/// Splits the name of an incarnation into the id of the instance and its node. `None`: it has another
/// form, or its node has no name.
pub fn split_incarnation(name: &str) -> Option<(&str, &str)> {
    let (instance, domain) = name.split_once('.')?;
    let node = domain.strip_suffix(TRUST_DOMAIN_SUFFIX)?;
    (!node.is_empty()).then_some((instance, node))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_incarnation_names_its_instance_and_node() {
        let node: NodeName = "b.example".parse().unwrap();
        let name = format!("i5.{}", trust_domain_of(&node));
        assert_eq!(split_incarnation(&name), Some(("i5", "b.example")));
        // The only node has no name.
        assert_eq!(split_incarnation("i5.up.nearpath"), None);
        assert_eq!(split_incarnation("i5"), None);
    }
}
