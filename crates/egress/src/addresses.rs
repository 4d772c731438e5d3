//! Addresses under which instances reach destinations. An IPv4 address stays as it is. A declared
//! name gets an address of `NAME_ADDRESS_RANGE`. A name below a wildcard gets one of
//! [`WILDCARD_NETWORK`] when an instance resolves it. Pure: routes and listeners follow from the
//! results.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use nearpath_kernel::attached_netns::NEXT_HOP;
use nearpath_types::egress::{EgressHost, EgressSpec};
use nearpath_types::{Eip, VirtualAddress};

use nearpath_connpool::pool::resolver::THIS_MACHINE;

/// Address of the egress proxy when it has a namespace of its own: the first of the network of name
/// addresses.
pub const EGRESS_PROXY_EIP: Eip = Eip(Ipv4Addr::new(10, 61, 0, 1));

/// First and last address for declared names.
const NAME_ADDRESS_RANGE: [Ipv4Addr; 2] =
    [Ipv4Addr::new(10, 61, 0, 2), Ipv4Addr::new(10, 61, 254, 254)];

/// Network and prefix length of addresses for names below a wildcard. Every instance assigns them
/// independently.
pub const WILDCARD_NETWORK: (Ipv4Addr, u8) = (Ipv4Addr::new(10, 61, 255, 0), 24);

/// Reason why instances cannot reach a declared destination. The texts are for the tenant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnreachableDestination {
    /// A loopback address, which inside an instance means the instance.
    #[error("egress {0}: a loopback address is the instance itself; declare {THIS_MACHINE}:{port} for the node's machine", port = .1)]
    Loopback(String, u16),
    /// An address in the node's own network.
    #[error(
        "egress {0}: the address is in the node's own network; call functions by name and declare them in `chains`"
    )]
    NodeNetwork(String),
    /// An address that no machine can have.
    #[error("egress {0}: no machine has this address")]
    InvalidAddress(String),
    /// An IPv4 address in IPv6 form.
    #[error("egress {0}: an IPv4 address in IPv6 form; write {1}:{port}", port = .2)]
    MappedIpv4(String, Ipv4Addr, u16),
    /// All addresses for names are in use.
    #[error("egress {0}: all {1} addresses for names are in use on this node; declare fewer names")]
    NamesExhausted(String, usize),
}

/// Address of a destination as an instance sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DestinationAddress {
    /// An IPv4 address that is routed through the hub namespace.
    Routed {
        /// The destination's own address, or one assigned to its name.
        address: Ipv4Addr,
        /// True if this instance is its first user.
        is_first: bool,
    },
    /// The destination's own IPv6 address, at which the node has a socket inside the instance.
    InsideInstance(Ipv6Addr),
    /// Addresses of [`WILDCARD_NETWORK`], each assigned when its name is resolved.
    Wildcard,
}

impl DestinationAddress {
    /// Returns the address that the instance connects to, unspecified for wildcards.
    pub fn visible_ip(&self) -> IpAddr {
        match *self {
            Self::Routed { address, .. } => address.into(),
            Self::InsideInstance(address) => address.into(),
            Self::Wildcard => Ipv4Addr::UNSPECIFIED.into(),
        }
    }
}

/// Assigned addresses and the number of instances that use each.
#[derive(Debug)]
pub struct AddressTable {
    /// The gateway's address, in the node's own /16.
    gateway: Ipv4Addr,
    address_by_name: BTreeMap<String, Ipv4Addr>,
    users_by_address: BTreeMap<Ipv4Addr, u32>,
    next_address: u32,
}

impl AddressTable {
    /// Creates an empty table for a node whose gateway has this address.
    pub fn new(gateway: Ipv4Addr) -> Self {
        Self {
            gateway,
            address_by_name: BTreeMap::new(),
            users_by_address: BTreeMap::new(),
            next_address: NAME_ADDRESS_RANGE[0].to_bits(),
        }
    }

    /// Returns the address of a destination for one more instance.
    ///
    /// # Errors
    /// When instances cannot reach the destination.
    pub fn assign_address(
        &mut self,
        to: &EgressSpec,
    ) -> Result<DestinationAddress, UnreachableDestination> {
        let text = || to.host_port();
        let address = match &to.host {
            EgressHost::V4(address) => self.check_literal_v4(*address, to).map(|()| *address),
            EgressHost::Name(name) if name == "localhost" => {
                Err(UnreachableDestination::Loopback(text(), to.port))
            }
            EgressHost::Name(name) => self.address_for_name(name).ok_or_else(|| {
                UnreachableDestination::NamesExhausted(text(), self.address_by_name.len())
            }),
            EgressHost::V6(address) => {
                return check_literal_v6(*address, to)
                    .map(|()| DestinationAddress::InsideInstance(*address));
            }
            EgressHost::Below(_) => return Ok(DestinationAddress::Wildcard),
        }?;
        // Instances share routes, so only the first user of an address adds one.
        let users = self.users_by_address.entry(address).or_default();
        *users += 1;
        Ok(DestinationAddress::Routed {
            address,
            is_first: *users == 1,
        })
    }

    /// Removes one user of an address. Returns true for the last one.
    pub fn release_address(&mut self, address: Ipv4Addr) -> bool {
        let Some(users) = self.users_by_address.get_mut(&address) else {
            return false;
        };
        *users -= 1;
        let last = *users == 0;
        if last {
            self.users_by_address.remove(&address);
        }
        last
    }

    fn check_literal_v4(
        &self,
        address: Ipv4Addr,
        to: &EgressSpec,
    ) -> Result<(), UnreachableDestination> {
        let text = to.host_port();
        let net = |address: Ipv4Addr| [address.octets()[0], address.octets()[1]];
        match address {
            _ if address.is_loopback() => Err(UnreachableDestination::Loopback(text, to.port)),
            // The proxy's network, virtual addresses and the next hop of the default route are the
            // node's own.
            _ if [self.gateway, EGRESS_PROXY_EIP.0, VirtualAddress::NETWORK]
                .map(net)
                .contains(&net(address))
                || address == NEXT_HOP =>
            {
                Err(UnreachableDestination::NodeNetwork(text))
            }
            // 0.0.0.0/8 and everything from 224.0.0.0 is no unicast address (RFC 6890, RFC 5771).
            _ if address.octets()[0] == 0 || address.octets()[0] >= 224 => {
                Err(UnreachableDestination::InvalidAddress(text))
            }
            _ => Ok(()),
        }
    }

    /// Returns the address of a name, the same one while the node runs. It changes only when all
    /// are assigned and no instance uses this name.
    fn address_for_name(&mut self, name: &str) -> Option<Ipv4Addr> {
        if let Some(address) = self.address_by_name.get(name) {
            return Some(*address);
        }
        // Unused addresses first: programs cache names, so an address changes its name as late as
        // possible.
        let address = match self.next_address <= NAME_ADDRESS_RANGE[1].to_bits() {
            true => {
                self.next_address += 1;
                Ipv4Addr::from_bits(self.next_address - 1)
            }
            false => self.reclaim_unused_address()?,
        };
        self.address_by_name.insert(name.to_owned(), address);
        Some(address)
    }

    fn reclaim_unused_address(&mut self) -> Option<Ipv4Addr> {
        let unused = self
            .address_by_name
            .iter()
            .find(|(_, address)| !self.users_by_address.contains_key(address));
        let (name, address) = unused.map(|(name, address)| (name.clone(), *address))?;
        self.address_by_name.remove(&name);
        Some(address)
    }
}

/// Checks a declared IPv6 address. Link-local ones need a zone, which the declaration cannot name.
fn check_literal_v6(address: Ipv6Addr, to: &EgressSpec) -> Result<(), UnreachableDestination> {
    match address.to_ipv4_mapped() {
        Some(v4) => Err(UnreachableDestination::MappedIpv4(
            to.host_port(),
            v4,
            to.port,
        )),
        _ if address.is_loopback() => {
            Err(UnreachableDestination::Loopback(to.host_port(), to.port))
        }
        _ if address.is_unspecified()
            || address.is_multicast()
            || address.is_unicast_link_local() =>
        {
            Err(UnreachableDestination::InvalidAddress(to.host_port()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 62, 0, 1);

    fn parse_egress(text: &str) -> EgressSpec {
        text.parse().unwrap()
    }

    fn assign_routed(
        table: &mut AddressTable,
        text: &str,
    ) -> Result<(Ipv4Addr, bool), UnreachableDestination> {
        table
            .assign_address(&parse_egress(text))
            .map(|destination| match destination {
                DestinationAddress::Routed { address, is_first } => (address, is_first),
                other => panic!("{text}: {other:?}"),
            })
    }

    #[test]
    fn ipv6_addresses_stay_and_wildcards_have_a_network_of_their_own() {
        let mut table = AddressTable::new(GATEWAY);
        let address: Ipv6Addr = "2001:db8::1".parse().unwrap();
        assert_eq!(
            table.assign_address(&parse_egress("[2001:db8::1]:443")),
            Ok(DestinationAddress::InsideInstance(address))
        );
        assert_eq!(
            table.assign_address(&parse_egress("*.example.com:443")),
            Ok(DestinationAddress::Wildcard)
        );
        let (network, size) = WILDCARD_NETWORK;
        assert_eq!(
            NAME_ADDRESS_RANGE[1].to_bits() + 2,
            network.to_bits(),
            "next to the name addresses"
        );
        assert!(size == 24 && network.octets()[3] == 0);
    }

    #[test]
    fn a_name_has_one_address_and_an_address_is_its_own() {
        let mut table = AddressTable::new(GATEWAY);
        let (db, is_first) = assign_routed(&mut table, "db:5432").unwrap();
        assert!(is_first && db != EGRESS_PROXY_EIP.0);
        assert_eq!(assign_routed(&mut table, "db:6379").unwrap(), (db, false));
        assert!(
            !table.release_address(db) && table.release_address(db) && !table.release_address(db)
        );
        assert_eq!(
            assign_routed(&mut table, "db:5432").unwrap(),
            (db, true),
            "the same while the node runs"
        );
        assert_ne!(assign_routed(&mut table, "other:5432").unwrap().0, db);
        let literal = Ipv4Addr::new(192, 0, 2, 1);
        assert_eq!(
            assign_routed(&mut table, "192.0.2.1:443").unwrap(),
            (literal, true)
        );
    }

    #[test]
    fn unreachable_destinations_are_reported_with_a_remedy() {
        let mut table = AddressTable::new(GATEWAY);
        let cases = [
            ("127.0.0.1:5432", "host.nearpath.internal:5432"),
            ("localhost:80", "host.nearpath.internal:80"),
            ("10.62.3.4:80", "chains"),
            ("10.61.0.9:80", "own network"),
            ("10.60.0.9:80", "own network"),
            ("169.254.0.1:80", "own network"),
            ("0.0.0.0:80", "no machine"),
            ("255.255.255.255:80", "no machine"),
            ("224.0.0.1:80", "no machine"),
            ("[::1]:80", "host.nearpath.internal:80"),
            ("[::]:80", "no machine"),
            ("[ff02::1]:80", "no machine"),
            ("[fe80::1]:80", "no machine"),
            ("[::ffff:192.0.2.1]:80", "write 192.0.2.1:80"),
        ];
        for (text, expected) in cases {
            let error = table
                .assign_address(&parse_egress(text))
                .unwrap_err()
                .to_string();
            assert!(
                error.contains(expected) && error.contains(text),
                "{text}: {error}"
            );
        }
    }

    #[test]
    fn names_without_users_give_up_their_address_when_all_are_assigned() {
        let mut table = AddressTable {
            next_address: NAME_ADDRESS_RANGE[1].to_bits(),
            ..AddressTable::new(GATEWAY)
        };
        let (last, _) = assign_routed(&mut table, "a:1").unwrap();
        assert_eq!(last, NAME_ADDRESS_RANGE[1]);
        assert!(matches!(
            assign_routed(&mut table, "b:1"),
            Err(UnreachableDestination::NamesExhausted(..))
        ));
        table.release_address(last);
        assert_eq!(assign_routed(&mut table, "b:1").unwrap(), (last, true));
    }

    proptest! {
        #[test]
        fn no_address_has_two_names(steps in prop::collection::vec((0u8..6, any::<bool>()), 0..60)) {
            // Leaves three addresses.
            let mut table = AddressTable { next_address: NAME_ADDRESS_RANGE[1].to_bits() - 2, ..AddressTable::new(GATEWAY) };
            let mut assigned: Vec<(u8, Ipv4Addr)> = Vec::new();
            for (name, takes) in steps {
                if !takes {
                    if let Some(at) = assigned.iter().position(|(other, _)| *other == name) {
                        let (_, address) = assigned.swap_remove(at);
                        prop_assert_eq!(table.release_address(address), !assigned.iter().any(|(_, other)| *other == address));
                    }
                    continue;
                }
                let Ok((address, is_first)) = assign_routed(&mut table, &format!("n{name}.x:1")) else {
                    prop_assert!(assigned.iter().map(|(name, _)| name).collect::<std::collections::BTreeSet<_>>().len() == 3);
                    continue;
                };
                prop_assert!(assigned.iter().all(|(other, at)| (*other == name) == (*at == address)));
                prop_assert_eq!(is_first, !assigned.iter().any(|(_, at)| *at == address));
                assigned.push((name, address));
            }
        }
    }
}
