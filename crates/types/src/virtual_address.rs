//! Virtual addresses of functions: one for all instances of a function, and each node's own.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};

/// Stable address of a function, at which its declared callers reach one of its instances with any
/// TCP or UDP protocol.
///
/// No device has this address. The kernel translates it when a socket connects or sends, and back
/// when the socket is asked for its peer.
///
/// It belongs to the name, from the first deployment or declaration as a callee, until the name is
/// neither deployed nor declared. Each data directory has addresses of its own, so a function has
/// another one on each node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct VirtualAddress {
    /// For sockets of either family. Unique, so it also stands for the function in kernel maps.
    pub v4: Ipv4Addr,
    /// For IPv6 sockets, a unique local address (RFC 4193).
    pub v6: Ipv6Addr,
}

impl VirtualAddress {
    /// Network of the IPv4 parts, a /16.
    pub const NETWORK: Ipv4Addr = Ipv4Addr::new(10, 60, 0, 0);
}

impl fmt::Display for VirtualAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.v4, self.v6)
    }
}
