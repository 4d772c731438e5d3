//! Addresses of this machine's interfaces, as host candidates.

use std::net::IpAddr;

use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::net::if_::InterfaceFlags;

/// Maximum of host addresses per family: mapped addresses need space in the offer, too.
const MAX_ADDRESSES_PER_FAMILY: usize = 3;

/// Lists addresses of interfaces that are up, without link-local ones. `loopback`: includes
/// loopback addresses.
///
/// Without access to the interfaces the list is empty; mapped addresses may suffice.
pub(super) fn list_addresses(loopback: bool) -> Vec<IpAddr> {
    let devices = getifaddrs().into_iter().flatten();
    let all: Vec<IpAddr> = devices
        .filter(is_up)
        .filter_map(|device| interface_address(&device))
        .collect();
    // A link-local address means another machine on every link, and needs a scope that no peer
    // knows.
    let useful = all.into_iter().filter(|ip| {
        if ip.is_loopback() {
            loopback
        } else {
            !is_link_local(*ip)
        }
    });
    let mut kept: Vec<IpAddr> = Vec::new();
    for ip in useful {
        let of_family = kept
            .iter()
            .filter(|other| other.is_ipv4() == ip.is_ipv4())
            .count();
        // Containers and VPNs add interfaces, and an offer has 16 candidates in all.
        if of_family < MAX_ADDRESSES_PER_FAMILY && !kept.contains(&ip) {
            kept.push(ip);
        }
    }
    kept
}

fn is_up(device: &InterfaceAddress) -> bool {
    device.flags.contains(InterfaceFlags::IFF_UP)
}

fn interface_address(device: &InterfaceAddress) -> Option<IpAddr> {
    let address = device.address.as_ref()?;
    let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
    v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
}

fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_listed_on_request_only() {
        assert!(list_addresses(true).contains(&IpAddr::from([127, 0, 0, 1])));
        assert!(
            list_addresses(false)
                .iter()
                .all(|ip| !ip.is_loopback() && !is_link_local(*ip))
        );
    }
}
