//! Addresses that a name may lead to. A name server is not trusted: its answer must not lead to
//! the machine itself, to its link or into the node's own network, in any notation.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use nearpath_kernel::local_address::is_local_address;

use super::resolver::{HOSTS_FILE, THIS_MACHINE};

/// Origin of a name's addresses.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum AnswerOrigin {
    /// A name server, which anyone may operate.
    #[default]
    NameServer,
    /// The machine's own hosts file.
    HostsFile,
}

/// Returns the addresses that may be connected to, out of an answer for a name.
///
/// # Errors
/// When none may.
pub(super) fn permitted_addresses(
    name: &str,
    addresses: &[IpAddr],
    origin: AnswerOrigin,
) -> io::Result<Vec<IpAddr>> {
    if origin == AnswerOrigin::HostsFile {
        return Ok(addresses.to_vec());
    }
    let mut permitted = Vec::with_capacity(addresses.len());
    for address in addresses {
        if !means_this_machine(*address, &is_local_address)? {
            permitted.push(*address);
        }
    }
    match addresses.first() {
        Some(inside) if permitted.is_empty() => Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!(
                "{name} resolves to {inside}, an address of this machine or its node: declare {THIS_MACHINE}, or add the name to the machine's {HOSTS_FILE}"
            ),
        )),
        _ => Ok(permitted),
    }
}

/// Returns true if an address leads to the machine, its link or the node's network, in IPv6 form
/// too. `is_local` knows the machine's own addresses.
fn means_this_machine(
    address: IpAddr,
    is_local: &impl Fn(IpAddr) -> io::Result<bool>,
) -> io::Result<bool> {
    let embedded = match address {
        IpAddr::V4(v4) if is_inside_v4(v4) => return Ok(true),
        IpAddr::V6(v6) if is_inside_v6(v6) => return Ok(true),
        IpAddr::V4(_) => Vec::new(),
        IpAddr::V6(v6) => embedded_ipv4(v6),
    };
    for v4 in embedded {
        if means_this_machine(v4.into(), is_local)? {
            return Ok(true);
        }
    }
    is_local(address)
}

fn is_inside_v4(address: Ipv4Addr) -> bool {
    let [a, b, ..] = address.octets();
    // 169.254.0.0/16 has the metadata services of clouds; multicast and reserved networks start at
    // 224. 10.61.0.0/16 and 10.62.0.0/16 are the node's own networks.
    address.is_loopback()
        || address.is_link_local()
        || a == 0
        || a >= 224
        || [[10, 61], [10, 62]].contains(&[a, b])
}

fn is_inside_v6(address: Ipv6Addr) -> bool {
    address.is_loopback()
        || address.is_unspecified()
        || address.is_unicast_link_local()
        || address.is_multicast()
}

/// Returns the IPv4 addresses that an IPv6 address may lead to: mapped and compatible addresses (RFC
/// 4291, 2.5.5), 6to4 (RFC 3056) and NAT64 (RFC 6052, RFC 8215).
fn embedded_ipv4(address: Ipv6Addr) -> Vec<Ipv4Addr> {
    let v4_at = |bit: u32| Ipv4Addr::from_bits((address.to_bits() << bit >> 96) as u32);
    match address.segments() {
        [0, 0, 0, 0, 0, 0 | 0xffff, ..] | [0x64, 0xff9b, 0, 0, 0, 0, ..] => vec![v4_at(96)],
        [0x2002, ..] => vec![v4_at(16)],
        [0x64, 0xff9b, 1, ..] => local_use_nat64(address),
        _ => Vec::new(),
    }
}

/// Returns the IPv4 addresses of an address of 64:ff9b:1::/48. Its operator chooses the length of
/// the prefix (RFC 8215), which determines the position of the IPv4 address (RFC 6052, 2.2). Each
/// possible position counts.
fn local_use_nat64(address: Ipv6Addr) -> Vec<Ipv4Addr> {
    let octets = address.octets();
    let has_zero_suffix = |prefix: usize| {
        // The octet 8 is reserved and not part of the IPv4 address.
        octets[8] == 0 && octets[prefix / 8 + 5..].iter().all(|octet| *octet == 0)
    };
    let v4_after = |prefix: usize| {
        let inside = (prefix / 8..).filter(|at| *at != 8).take(4);
        inside.fold(0, |bits, at| bits << 8 | u32::from(octets[at]))
    };
    let short = [48, 56, 64]
        .into_iter()
        .filter(|prefix| has_zero_suffix(*prefix));
    let mut found: Vec<_> = short.map(v4_after).map(Ipv4Addr::from_bits).collect();
    // With a zero suffix, a prefix of 96 bits would mean a network address.
    if found.is_empty() {
        found.push(Ipv4Addr::from_bits(v4_after(96)));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAN: Ipv4Addr = Ipv4Addr::new(192, 168, 1, 5);

    fn is_refused(text: &str) -> bool {
        let is_local = |address: IpAddr| Ok(address == LAN || address.to_string() == "2001:db8::7");
        means_this_machine(text.parse().unwrap(), &is_local).unwrap()
    }

    #[test]
    fn addresses_of_this_machine_its_link_and_its_node_are_refused() {
        for inside in [
            "127.0.0.1",
            "127.9.9.9",
            "0.0.0.0",
            "169.254.169.254",
            "224.0.0.1",
            "255.255.255.255",
            "10.62.0.1",
            "10.61.0.9",
            "192.168.1.5",
            "::1",
            "::",
            "fe80::1",
            "ff02::1",
            "2001:db8::7",
        ] {
            assert!(is_refused(inside), "{inside}");
        }
    }

    #[test]
    fn ipv6_forms_are_judged_by_the_ipv4_address_inside() {
        for inside in [
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "::ffff:192.168.1.5",
            "::127.0.0.1",
            "::192.168.1.5",
            "64:ff9b::127.0.0.1",
            "64:ff9b::192.168.1.5",
            "64:ff9b:1::192.168.1.5",
            "64:ff9b:1:abcd::10.62.0.1",
            // RFC 6052, 2.2: prefixes of 48, 56 and 64 bits.
            "64:ff9b:1:c0a8:1:500::",
            "64:ff9b:1:c0:a8:105::",
            "64:ff9b:1:0:c0:a801:500::",
            "2002:7f00:1::1",
            "2002:c0a8:105::1",
        ] {
            assert!(is_refused(inside), "{inside}");
        }
    }

    #[test]
    fn all_other_addresses_are_permitted() {
        for outside in [
            "10.0.0.1",
            "192.168.1.1",
            "8.8.8.8",
            "2001:db8::1",
            "fd00::1",
            "::ffff:8.8.8.8",
            "::8.8.8.8",
            "64:ff9b::8.8.8.8",
            "64:ff9b:1::8.8.8.8",
            "64:ff9b:1:808:8:800::",
            "2002:808:808::1",
        ] {
            assert!(!is_refused(outside), "{outside}");
        }
    }
}
