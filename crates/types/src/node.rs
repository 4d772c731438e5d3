//! Nodes: their names, their addresses, and what each says about its functions.
//!
//! A node's name follows RFC 1123 subdomains, as Kubernetes' does: labels of `a` to `z`, digits and `-`,
//! separated by dots, at most 253 octets. The last label has one of `a` to `z`: TLS takes a name of digits for an
//! address. The name is part of the node's certificate
//! ([`SpiffeRole::Gateway`](crate::spiffe::SpiffeRole::Gateway)).

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// RFC 1123 section 2.1, without the final dot of RFC 1034.
const MAX_NODE_NAME_BYTES: usize = 253;
/// RFC 1034 section 3.1.
const MAX_LABEL_BYTES: usize = 63;

/// Addresses of nodes, `HOST:PORT`, by name.
pub type NodeAddresses = BTreeMap<NodeName, String>;

/// Name of a node. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NodeName(Arc<str>);

/// Error of an invalid node name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid node name {0:?}: expected labels of lower-case letters, digits and '-', separated by dots, with a letter in the last one, at most 253 octets (RFC 1123)"
)]
pub struct InvalidNodeName(String);

impl NodeName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for NodeName {
    type Err = InvalidNodeName;

    fn from_str(text: &str) -> Result<Self, InvalidNodeName> {
        let has_letter = |label: &str| label.bytes().any(|byte| byte.is_ascii_alphabetic());
        let is_host = text.rsplit('.').next().is_some_and(has_letter);
        match text.len() <= MAX_NODE_NAME_BYTES && is_host && text.split('.').all(is_label) {
            true => Ok(Self(text.into())),
            // Shortened, because the text may come from any peer.
            false => Err(InvalidNodeName(text.chars().take(80).collect())),
        }
    }
}

fn is_label(label: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let has_edges = !label.starts_with('-') && !label.ends_with('-');
    !label.is_empty()
        && label.len() <= MAX_LABEL_BYTES
        && has_edges
        && label.bytes().all(is_allowed)
}

impl TryFrom<String> for NodeName {
    type Error = InvalidNodeName;

    fn try_from(text: String) -> Result<Self, InvalidNodeName> {
        text.parse()
    }
}

impl From<NodeName> for String {
    fn from(name: NodeName) -> String {
        name.0.as_ref().to_owned()
    }
}

impl Borrow<str> for NodeName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Another node to which this one has a connection.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PeerNode {
    /// Name of the node, which its certificate proves.
    pub name: NodeName,
    /// Address for calls between nodes, TCP and UDP.
    pub addr: SocketAddr,
    /// Random number of the run of its process; 0: not known yet. Connections lead to one process.
    pub incarnation: u64,
}

/// A function's instances on one node, as that node reports them to others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionLoad {
    /// Ready instances.
    pub ready: u32,
    /// Requests at these instances, and those that wait for a place.
    pub requests: u32,
}

/// A function's instances on another node, which delivers calls to them itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteInstances {
    /// The node. Connections to it serve all its functions.
    pub node: Arc<PeerNode>,
    /// Last report of the node. Without ready instances, a call wakes the function there.
    pub load: FunctionLoad,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_follow_rfc_1123() {
        let long = [
            "x".repeat(63),
            "y".repeat(63),
            "z".repeat(63),
            "w".repeat(61),
        ]
        .join(".");
        for good in [
            "a",
            "1a",
            "node-1",
            "1.a",
            "ip-10-0-0-1.ec2.internal",
            &long,
        ] {
            assert!(good.parse::<NodeName>().is_ok(), "{good}");
        }
        for bad in [
            "",
            ".",
            "a.",
            "-a",
            "a-",
            "A",
            "a_b",
            "a..b",
            "ä",
            "1",
            "10.0.0.1",
            &"x".repeat(64),
            &format!("{long}x"),
        ] {
            assert!(bad.parse::<NodeName>().is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_refused_or_survives_a_round_trip(text in ".{0,80}") {
            if let Ok(name) = text.parse::<NodeName>() {
                prop_assert_eq!(name.to_string(), text);
            }
        }
    }
}
