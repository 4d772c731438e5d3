//! Network that one caller controls; shares of limits are counted by it.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

/// Host part of an IPv6 address: a network of one subscriber is a /64 (RFC 6177), and its hosts
/// choose addresses in it freely.
const IPV6_HOST_BITS: u32 = 64;

/// Network that one caller controls: an IPv4 address, or a /64 of IPv6.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SourceNetwork(IpAddr);

impl SourceNetwork {
    /// Returns the network of an address.
    pub fn of(addr: IpAddr) -> Self {
        // A dual-stack socket reports IPv4 clients as mapped IPv6 addresses, all of one /64.
        Self(match addr.to_canonical() {
            IpAddr::V4(addr) => IpAddr::V4(addr),
            IpAddr::V6(addr) => IpAddr::V6(Ipv6Addr::from_bits(
                addr.to_bits() >> IPV6_HOST_BITS << IPV6_HOST_BITS,
            )),
        })
    }
}

impl fmt::Display for SourceNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            IpAddr::V4(addr) => addr.fmt(f),
            IpAddr::V6(prefix) => write!(f, "{prefix}/{}", u128::BITS - IPV6_HOST_BITS),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_of_ipv6_is_one_source_and_an_address_of_ipv4_is_one_in_both_forms() {
        let source = |addr: &str| SourceNetwork::of(addr.parse().unwrap());
        assert_eq!(source("2001:db8:0:1::1"), source("2001:db8:0:1:ffff::2"));
        assert_ne!(source("2001:db8:0:1::1"), source("2001:db8:0:2::1"));
        assert_eq!(source("::ffff:192.0.2.1"), source("192.0.2.1"));
        assert_ne!(source("::ffff:192.0.2.1"), source("::ffff:192.0.2.2"));
        assert_eq!(source("2001:db8::1").to_string(), "2001:db8::/64");
        assert_eq!(source("::ffff:192.0.2.1").to_string(), "192.0.2.1");
    }
}
