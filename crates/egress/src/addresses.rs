//! The addresses by which instances know destinations: an address stands for itself, a name has one that stands for it, and so does each name below a
//! name once an instance asks for it ([`WILDCARD_NETWORK`]).
//! Pure: routes and listeners follow from what is said here.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use nearpath_kernel::attached_netns::NEXT_HOP;
use nearpath_types::Eip;
use nearpath_types::egress::{EgressHost, EgressSpec};

use nearpath_connpool::pool::resolver::THIS_MACHINE;

/// Where the exit itself is when it is a station of its own: the first of the network that stands for names.
pub const EGRESS_PROXY_EIP: Eip = Eip(Ipv4Addr::new(10, 61, 0, 1));

/// The first and the last address that stand for declared names.
const NAME_ADDRESS_RANGE: [Ipv4Addr; 2] =
    [Ipv4Addr::new(10, 61, 0, 2), Ipv4Addr::new(10, 61, 254, 254)];

/// The network, and the length of its prefix, of addresses that stand for names below a declared one: in each instance for names of its own.
pub const WILDCARD_NETWORK: (Ipv4Addr, u8) = (Ipv4Addr::new(10, 61, 255, 0), 24);

/// Why instances cannot reach a destination that was declared. The texts are for the tenant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnreachableDestination {
    /// Inside an instance it means the instance.
    #[error("egress {0}: inside an instance that is the instance itself; the node's machine is called {THIS_MACHINE}:{port}", port = .1)]
    Loopback(String, u16),
    /// An address of the node's own network.
    #[error(
        "egress {0}: this address belongs to the node's own network; functions are called by their names, declared in `chains`"
    )]
    NodeNetwork(String),
    /// No address of a machine.
    #[error("egress {0}: no machine has this address")]
    InvalidAddress(String),
    /// An IPv4 address in IPv6's form.
    #[error("egress {0}: this is an IPv4 address; write {1}:{port}", port = .2)]
    MappedIpv4(String, Ipv4Addr, u16),
    /// Names use all addresses.
    #[error(
        "egress {0}: this node's functions declare {1} names at a time, as many as there can be"
    )]
    NamesExhausted(String, usize),
}

/// How an instance gets to a destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DestinationAddress {
    /// Through the switch, by this address.
    Routed {
        /// Its own, or one that stands for its name.
        address: Ipv4Addr,
        /// Whether this instance is the first one to know it.
        is_first: bool,
    },
    /// By its own address, which is the instance's, too: the node has a socket there.
    InsideInstance(Ipv6Addr),
    /// By addresses of [`WILDCARD_NETWORK`], each from the moment in which its name is asked for.
    Wildcard,
}

impl DestinationAddress {
    /// The address by which it is known, unspecified where there are many.
    pub fn visible_ip(&self) -> IpAddr {
        match *self {
            Self::Routed { address, .. } => address.into(),
            Self::InsideInstance(address) => address.into(),
            Self::Wildcard => Ipv4Addr::UNSPECIFIED.into(),
        }
    }
}

/// Who is known by which address, and how many instances know it.
#[derive(Debug)]
pub struct AddressTable {
    /// Of the node's own network, a /16.
    gateway: Ipv4Addr,
    address_by_name: BTreeMap<String, Ipv4Addr>,
    users_by_address: BTreeMap<Ipv4Addr, u32>,
    next_address: u32,
}

impl AddressTable {
    /// On a node whose gateway is at this address.
    pub fn new(gateway: Ipv4Addr) -> Self {
        Self {
            gateway,
            address_by_name: BTreeMap::new(),
            users_by_address: BTreeMap::new(),
            next_address: NAME_ADDRESS_RANGE[0].to_bits(),
        }
    }

    /// How one more instance gets to a destination.
    ///
    /// # Errors
    /// When it cannot be reached from an instance.
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
        let users = self.users_by_address.entry(address).or_default();
        *users += 1;
        Ok(DestinationAddress::Routed {
            address,
            is_first: *users == 1,
        })
    }

    /// One instance less; whether it was the last one.
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
            _ if [net(self.gateway), net(EGRESS_PROXY_EIP.0)].contains(&net(address))
                || address == NEXT_HOP =>
            {
                Err(UnreachableDestination::NodeNetwork(text))
            }
            _ if address.octets()[0] == 0 || address.octets()[0] >= 224 => {
                Err(UnreachableDestination::InvalidAddress(text))
            }
            _ => Ok(()),
        }
    }

    /// The same one for a name as long as the node lives, unless all were given out and nobody knows this one any more.
    fn address_for_name(&mut self, name: &str) -> Option<Ipv4Addr> {
        if let Some(address) = self.address_by_name.get(name) {
            return Some(*address);
        }
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

/// Of link-local addresses a machine has one a device: they need a zone, which an address by itself does not have.
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
        places: &mut AddressTable,
        text: &str,
    ) -> Result<(Ipv4Addr, bool), UnreachableDestination> {
        places
            .assign_address(&parse_egress(text))
            .map(|place| match place {
                DestinationAddress::Routed {
                    address,
                    is_first: first,
                } => (address, first),
                other => panic!("{text}: {other:?}"),
            })
    }

    #[test]
    fn ipv6_addresses_are_their_own_and_names_below_a_name_have_a_network() {
        let mut places = AddressTable::new(GATEWAY);
        let address: Ipv6Addr = "2001:db8::1".parse().unwrap();
        assert_eq!(
            places.assign_address(&parse_egress("[2001:db8::1]:443")),
            Ok(DestinationAddress::InsideInstance(address))
        );
        assert_eq!(
            places.assign_address(&parse_egress("*.example.com:443")),
            Ok(DestinationAddress::Wildcard)
        );
        let (network, size) = WILDCARD_NETWORK;
        assert_eq!(
            NAME_ADDRESS_RANGE[1].to_bits() + 2,
            network.to_bits(),
            "beside the others"
        );
        assert!(size == 24 && network.octets()[3] == 0);
    }

    #[test]
    fn a_name_has_one_address_and_an_address_is_its_own() {
        let mut places = AddressTable::new(GATEWAY);
        let (db, first) = assign_routed(&mut places, "db:5432").unwrap();
        assert!(first && db != EGRESS_PROXY_EIP.0);
        assert_eq!(assign_routed(&mut places, "db:6379").unwrap(), (db, false));
        assert!(
            !places.release_address(db)
                && places.release_address(db)
                && !places.release_address(db)
        );
        assert_eq!(
            assign_routed(&mut places, "db:5432").unwrap(),
            (db, true),
            "the same as long as the node lives"
        );
        assert_ne!(assign_routed(&mut places, "other:5432").unwrap().0, db);
        let literal = Ipv4Addr::new(192, 0, 2, 1);
        assert_eq!(
            assign_routed(&mut places, "192.0.2.1:443").unwrap(),
            (literal, true)
        );
    }

    #[test]
    fn unreachable_destinations_are_reported_with_a_remedy() {
        let mut places = AddressTable::new(GATEWAY);
        let said = [
            ("127.0.0.1:5432", "host.nearpath.internal:5432"),
            ("localhost:80", "host.nearpath.internal:80"),
            ("10.62.3.4:80", "chains"),
            ("10.61.0.9:80", "own network"),
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
        for (text, told) in said {
            let error = places
                .assign_address(&parse_egress(text))
                .unwrap_err()
                .to_string();
            assert!(
                error.contains(told) && error.contains(text),
                "{text}: {error}"
            );
        }
    }

    #[test]
    fn names_without_users_give_up_their_address_when_all_are_assigned() {
        let mut places = AddressTable {
            next_address: NAME_ADDRESS_RANGE[1].to_bits(),
            ..AddressTable::new(GATEWAY)
        };
        let (last, _) = assign_routed(&mut places, "a:1").unwrap();
        assert_eq!(last, NAME_ADDRESS_RANGE[1]);
        assert!(matches!(
            assign_routed(&mut places, "b:1"),
            Err(UnreachableDestination::NamesExhausted(..))
        ));
        places.release_address(last);
        assert_eq!(assign_routed(&mut places, "b:1").unwrap(), (last, true));
    }

    proptest! {
        #[test]
        fn no_address_has_two_names(steps in prop::collection::vec((0u8..6, any::<bool>()), 0..60)) {
            let mut places = AddressTable { next_address: NAME_ADDRESS_RANGE[1].to_bits() - 2, ..AddressTable::new(GATEWAY) }; // three of them
            let mut held: Vec<(u8, Ipv4Addr)> = Vec::new();
            for (name, takes) in steps {
                if !takes {
                    if let Some(at) = held.iter().position(|(other, _)| *other == name) {
                        let (_, address) = held.swap_remove(at);
                        prop_assert_eq!(places.release_address(address), !held.iter().any(|(_, other)| *other == address));
                    }
                    continue;
                }
                let Ok((address, first)) = assign_routed(&mut places, &format!("n{name}.x:1")) else {
                    prop_assert!(held.iter().map(|(name, _)| name).collect::<std::collections::BTreeSet<_>>().len() == 3);
                    continue;
                };
                prop_assert!(held.iter().all(|(other, at)| (*other == name) == (*at == address)));
                prop_assert_eq!(first, !held.iter().any(|(_, at)| *at == address));
                held.push((name, address));
            }
        }
    }
}
