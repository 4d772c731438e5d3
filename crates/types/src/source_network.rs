//! Network that one caller controls; shares of limits are counted by it.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Bytes of an IPv6 prefix: a network of one subscriber is a /64 (RFC 6177), and its hosts choose
/// addresses in it freely.
const IPV6_PREFIX_BYTES: usize = 8;

/// Network that one caller controls: an IPv4 address, or a /64 of IPv6.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SourceNetwork(NetworkBytes);

/// As bytes: every request holds some of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum NetworkBytes {
    V4([u8; 4]),
    V6([u8; IPV6_PREFIX_BYTES]),
}

impl SourceNetwork {
    /// Returns the network of an address.
    pub fn of(addr: IpAddr) -> Self {
        // A dual-stack socket reports IPv4 clients as mapped IPv6 addresses, all of one /64.
        Self(match addr.to_canonical() {
            IpAddr::V4(addr) => NetworkBytes::V4(addr.octets()),
            IpAddr::V6(addr) => {
                let [prefix @ .., _, _, _, _, _, _, _, _] = addr.octets();
                NetworkBytes::V6(prefix)
            }
        })
    }
}

impl fmt::Display for SourceNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            NetworkBytes::V4(addr) => Ipv4Addr::from(addr).fmt(f),
            NetworkBytes::V6(prefix) => {
                let mut addr = [0; 16];
                addr[..IPV6_PREFIX_BYTES].copy_from_slice(&prefix);
                write!(f, "{}/{}", Ipv6Addr::from(addr), 8 * IPV6_PREFIX_BYTES)
            }
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
