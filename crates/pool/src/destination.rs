//! Who goes out, and where to.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::rc::Rc;

use nearpath_types::egress::Egress;
use nearpath_types::{Eip, FunctionId, InstanceId};

/// An instance that may go out.
#[derive(Debug, Clone)]
pub struct Caller {
    /// Its id.
    pub instance: InstanceId,
    /// Whose instance it is.
    pub function: FunctionId,
    /// The chain of its function.
    pub chain: Option<String>,
    /// The address that its packets come from.
    pub eip: Eip,
    /// Where it may go.
    pub destinations: Vec<Rc<Destination>>,
}

/// A destination that a function declared.
#[derive(Debug, Clone)]
pub struct Destination {
    /// As declared.
    pub egress: Egress,
    /// The address by which an instance knows it: its own, or one that stands for its name.
    pub stands: Ipv4Addr,
    /// Whose connections to it are shared.
    pub key: Key,
    /// The secrets that it names, with their contents.
    pub secrets: BTreeMap<String, Vec<u8>>,
}

/// Connections with equal keys serve each other's functions.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// The function, or `NAMESPACE/CHAIN` where a chain shares.
    pub owner: String,
    /// `HOST:PORT`.
    pub to: String,
    /// As whom, and through which TLS: empty where the function speaks for itself.
    pub identity: String,
    /// Grows with every change of the function's policy: what was opened before is not handed out after.
    pub epoch: u64,
}
