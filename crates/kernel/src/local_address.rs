//! Addresses that a packet reaches without leaving its network namespace.

use std::io;
use std::net::IpAddr;

use netlink_packet_route::route::RouteType;

use crate::netlink::RtnlSocket;

/// Returns whether packets to an address stay in the calling thread's network namespace: an address
/// of one of its interfaces, or a `local` route (ip-route(8)). The kernel answers from its present
/// state in some microseconds. An address without a route is not local.
///
/// # Errors
/// Fails with too many open files, or when the kernel does not answer.
pub fn is_local_address(address: IpAddr) -> io::Result<bool> {
    let kind = RtnlSocket::open()?.route_kind(address)?;
    // Broadcasts reach the machine too. Anycast addresses are its own addresses as a router.
    Ok(matches!(
        kind,
        Some(RouteType::Local | RouteType::Broadcast | RouteType::Anycast)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::NetworkDevices;
    use crate::namespace::create_netns;
    use crate::netlink::LOOPBACK_INDEX;

    #[test]
    fn loopback_is_local_and_a_test_network_is_not() {
        for (address, expected) in [("127.9.9.9", true), ("::1", true), ("192.0.2.1", false)] {
            let address: IpAddr = address.parse().unwrap();
            assert_eq!(is_local_address(address).unwrap(), expected, "{address}");
        }
    }

    #[test]
    fn an_address_is_local_as_soon_as_an_interface_has_it() {
        nearpath_testkit::need_root!();
        let checked = create_netns(|| {
            let mut devices = NetworkDevices::open()?;
            devices.set_up(LOOPBACK_INDEX)?;
            for (text, prefix) in [("192.0.2.7", 24), ("2001:db8::7", 64)] {
                let address: IpAddr = text.parse().unwrap();
                assert!(!is_local_address(address)?, "{address}");
                devices.add_address(LOOPBACK_INDEX, (address, prefix))?;
                // The kernel adds an IPv6 address' route a moment after the address.
                nearpath_testkit::eventually_blocking("the address is local", || {
                    is_local_address(address).unwrap()
                });
            }
            Ok(())
        });
        checked.unwrap();
    }
}
