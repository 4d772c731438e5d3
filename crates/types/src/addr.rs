//! Addresses, with one type per role, so that they cannot be swapped.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use serde::{Deserialize, Serialize};

/// The address of an instance inside the node's own network: the endpoint IP. It also identifies
/// the caller when an instance opens a connection to the gateway; the node drops packets that carry
/// another instance's eIP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Eip(pub Ipv4Addr);

impl fmt::Display for Eip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Address of an instance's watchdog.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct InstanceAddr(pub SocketAddr);

impl InstanceAddr {
    /// The address without the port: the caller's identity, see [`Eip`].
    pub fn ip(&self) -> IpAddr {
        self.0.ip()
    }
}

impl fmt::Display for InstanceAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
