//! Virtual addresses of functions: the same for all instances of a function, on every node.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};

/// Stable address of a function, at which its declared callers reach one of its instances with any
/// TCP or UDP protocol.
///
/// No device has this address. The kernel translates it when a socket connects or sends, and back
/// when the socket is asked for its peer. Drawn once, and kept until the function is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct VirtualAddress {
    /// For sockets of either family. Unique, so it also stands for the function in kernel maps.
    pub v4: Ipv4Addr,
    /// For IPv6 sockets, a unique local address (RFC 4193).
    pub v6: Ipv6Addr,
}

impl fmt::Display for VirtualAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.v4, self.v6)
    }
}
