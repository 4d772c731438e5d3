//! Virtual addresses of functions: one for all instances of a function, and each node's own.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

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

    /// Returns the virtual address (IPv4) that a caller has connected to, from the source of its
    /// connection to the gateway inside its instance; `None`: it has connected to the gateway itself.
    ///
    /// `bpf/vip.c` gives such connections a loopback address with the last two octets of the virtual one.
    pub fn of_source(source: IpAddr) -> Option<Ipv4Addr> {
        let IpAddr::V4(source) = source.to_canonical() else {
            return None;
        };
        let (network, [first, second, c, d]) = (Self::NETWORK.octets(), source.octets());
        ([first, second] == [127, network[1]]).then(|| [network[0], network[1], c, d].into())
    }
}

impl fmt::Display for VirtualAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.v4, self.v6)
    }
}
