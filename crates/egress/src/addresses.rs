//! The addresses by which instances know destinations: an address stands for itself, a name has one that stands for it, and so does each name below a
//! name once an instance asks for it ([`BELOW`]).
//! Pure: routes and listeners follow from what is said here.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use nearpath_kernel::attached_netns::NEXT_HOP;
use nearpath_types::Eip;
use nearpath_types::egress::{Egress, Host};

use nearpath_connpool::pool::resolver::THIS_MACHINE;

/// Where the exit itself is when it is a station of its own: the first of the network that stands for names.
pub const EXIT: Eip = Eip(Ipv4Addr::new(10, 61, 0, 1));

/// The first and the last address that stand for declared names.
const STANDING: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 61, 0, 2), Ipv4Addr::new(10, 61, 254, 254)];

/// The network, and the length of its prefix, of addresses that stand for names below a declared one: in each instance for names of its own.
pub const BELOW: (Ipv4Addr, u8) = (Ipv4Addr::new(10, 61, 255, 0), 24);

/// Why instances cannot reach a destination that was declared. The texts are for the tenant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoPlace {
    /// Inside an instance it means the instance.
    #[error("egress {0}: inside an instance that is the instance itself; the node's machine is called {THIS_MACHINE}:{port}", port = .1)]
    Loopback(String, u16),
    /// An address of the node's own network.
    #[error(
        "egress {0}: this address belongs to the node's own network; functions are called by their names, declared in `chains`"
    )]
    Own(String),
    /// No address of a machine.
    #[error("egress {0}: no machine has this address")]
    Nobody(String),
    /// An IPv4 address in IPv6's form.
    #[error("egress {0}: this is an IPv4 address; write {1}:{port}", port = .2)]
    Mapped(String, Ipv4Addr, u16),
    /// Names use all addresses.
    #[error("egress {0}: this node's functions declare {1} names at a time, as many as there can be")]
    Full(String, usize),
}

/// How an instance gets to a destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Through the switch, by this address.
    Standing {
        /// Its own, or one that stands for its name.
        address: Ipv4Addr,
        /// Whether this instance is the first one to know it.
        first: bool,
    },
    /// By its own address, which is the instance's, too: the node has a socket there.
    Inside(Ipv6Addr),
    /// By addresses of [`BELOW`], each from the moment in which its name is asked for.
    Below,
}

impl Place {
    /// The address by which it is known, unspecified where there are many.
    pub fn address(&self) -> IpAddr {
        match *self {
            Self::Standing { address, .. } => address.into(),
            Self::Inside(address) => address.into(),
            Self::Below => Ipv4Addr::UNSPECIFIED.into(),
        }
    }
}

/// Who is known by which address, and how many instances know it.
#[derive(Debug)]
pub struct Places {
    /// Of the node's own network, a /16.
    gateway: Ipv4Addr,
    names: BTreeMap<String, Ipv4Addr>,
    users: BTreeMap<Ipv4Addr, u32>,
    next: u32,
}

impl Places {
    /// On a node whose gateway is at this address.
    pub fn new(gateway: Ipv4Addr) -> Self {
        Self { gateway, names: BTreeMap::new(), users: BTreeMap::new(), next: STANDING[0].to_bits() }
    }

    /// How one more instance gets to a destination.
    ///
    /// # Errors
    /// When it cannot be reached from an instance.
    pub fn take(&mut self, to: &Egress) -> Result<Place, NoPlace> {
        let text = || to.to();
        let address = match &to.host {
            Host::V4(address) => self.literal(*address, to).map(|()| *address),
            Host::Name(name) if name == "localhost" => Err(NoPlace::Loopback(text(), to.port)),
            Host::Name(name) => self.stand_in(name).ok_or_else(|| NoPlace::Full(text(), self.names.len())),
            Host::V6(address) => return literal_v6(*address, to).map(|()| Place::Inside(*address)),
            Host::Below(_) => return Ok(Place::Below),
        }?;
        let users = self.users.entry(address).or_default();
        *users += 1;
        Ok(Place::Standing { address, first: *users == 1 })
    }

    /// One instance less; whether it was the last one.
    pub fn give_back(&mut self, address: Ipv4Addr) -> bool {
        let Some(users) = self.users.get_mut(&address) else { return false };
        *users -= 1;
        let last = *users == 0;
        if last {
            self.users.remove(&address);
        }
        last
    }

    fn literal(&self, address: Ipv4Addr, to: &Egress) -> Result<(), NoPlace> {
        let text = to.to();
        let net = |address: Ipv4Addr| [address.octets()[0], address.octets()[1]];
        match address {
            _ if address.is_loopback() => Err(NoPlace::Loopback(text, to.port)),
            _ if [net(self.gateway), net(EXIT.0)].contains(&net(address)) || address == NEXT_HOP => {
                Err(NoPlace::Own(text))
            }
            _ if address.octets()[0] == 0 || address.octets()[0] >= 224 => Err(NoPlace::Nobody(text)),
            _ => Ok(()),
        }
    }

    /// The same one for a name as long as the node lives, unless all were given out and nobody knows this one any more.
    fn stand_in(&mut self, name: &str) -> Option<Ipv4Addr> {
        if let Some(address) = self.names.get(name) {
            return Some(*address);
        }
        let address = match self.next <= STANDING[1].to_bits() {
            true => {
                self.next += 1;
                Ipv4Addr::from_bits(self.next - 1)
            }
            false => self.forget_one()?,
        };
        self.names.insert(name.to_owned(), address);
        Some(address)
    }

    fn forget_one(&mut self) -> Option<Ipv4Addr> {
        let unused = self.names.iter().find(|(_, address)| !self.users.contains_key(address));
        let (name, address) = unused.map(|(name, address)| (name.clone(), *address))?;
        self.names.remove(&name);
        Some(address)
    }
}

/// Of link-local addresses a machine has one a device: they need a zone, which an address by itself does not have.
fn literal_v6(address: Ipv6Addr, to: &Egress) -> Result<(), NoPlace> {
    match address.to_ipv4_mapped() {
        Some(v4) => Err(NoPlace::Mapped(to.to(), v4, to.port)),
        _ if address.is_loopback() => Err(NoPlace::Loopback(to.to(), to.port)),
        _ if address.is_unspecified() || address.is_multicast() || address.is_unicast_link_local() => {
            Err(NoPlace::Nobody(to.to()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 62, 0, 1);

    fn to(text: &str) -> Egress {
        text.parse().unwrap()
    }

    fn standing(places: &mut Places, text: &str) -> Result<(Ipv4Addr, bool), NoPlace> {
        places.take(&to(text)).map(|place| match place {
            Place::Standing { address, first } => (address, first),
            other => panic!("{text}: {other:?}"),
        })
    }

    #[test]
    fn ipv6_addresses_are_their_own_and_names_below_a_name_have_a_network() {
        let mut places = Places::new(GATEWAY);
        let address: Ipv6Addr = "2001:db8::1".parse().unwrap();
        assert_eq!(places.take(&to("[2001:db8::1]:443")), Ok(Place::Inside(address)));
        assert_eq!(places.take(&to("*.example.com:443")), Ok(Place::Below));
        let (network, size) = BELOW;
        assert_eq!(STANDING[1].to_bits() + 2, network.to_bits(), "beside the others");
        assert!(size == 24 && network.octets()[3] == 0);
    }

    #[test]
    fn a_name_has_one_address_and_an_address_is_its_own() {
        let mut places = Places::new(GATEWAY);
        let (db, first) = standing(&mut places, "db:5432").unwrap();
        assert!(first && db != EXIT.0);
        assert_eq!(standing(&mut places, "db:6379").unwrap(), (db, false));
        assert!(!places.give_back(db) && places.give_back(db) && !places.give_back(db));
        assert_eq!(standing(&mut places, "db:5432").unwrap(), (db, true), "the same as long as the node lives");
        assert_ne!(standing(&mut places, "other:5432").unwrap().0, db);
        let literal = Ipv4Addr::new(192, 0, 2, 1);
        assert_eq!(standing(&mut places, "192.0.2.1:443").unwrap(), (literal, true));
    }

    #[test]
    fn what_instances_cannot_reach_is_told_with_what_to_do() {
        let mut places = Places::new(GATEWAY);
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
            let error = places.take(&to(text)).unwrap_err().to_string();
            assert!(error.contains(told) && error.contains(text), "{text}: {error}");
        }
    }

    #[test]
    fn when_all_are_given_out_names_that_nobody_knows_make_room() {
        let mut places = Places { next: STANDING[1].to_bits(), ..Places::new(GATEWAY) };
        let (last, _) = standing(&mut places, "a:1").unwrap();
        assert_eq!(last, STANDING[1]);
        assert!(matches!(standing(&mut places, "b:1"), Err(NoPlace::Full(..))));
        places.give_back(last);
        assert_eq!(standing(&mut places, "b:1").unwrap(), (last, true));
    }

    proptest! {
        #[test]
        fn no_address_has_two_names(steps in prop::collection::vec((0u8..6, any::<bool>()), 0..60)) {
            let mut places = Places { next: STANDING[1].to_bits() - 2, ..Places::new(GATEWAY) }; // three of them
            let mut held: Vec<(u8, Ipv4Addr)> = Vec::new();
            for (name, takes) in steps {
                if !takes {
                    if let Some(at) = held.iter().position(|(other, _)| *other == name) {
                        let (_, address) = held.swap_remove(at);
                        prop_assert_eq!(places.give_back(address), !held.iter().any(|(_, other)| *other == address));
                    }
                    continue;
                }
                let Ok((address, first)) = standing(&mut places, &format!("n{name}.x:1")) else {
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
