//! The addresses by which instances know destinations: an IPv4 address stands for itself, a name has one that stands for it.
//! Pure: routes and listeners follow from what is said here.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use nearpath_kernel::station::NEXT_HOP;
use nearpath_types::Eip;
use nearpath_types::egress::{Egress, Host};

use crate::keeper::names::THIS_MACHINE;

/// Where the exit itself is when it is a station of its own: the first of the network that stands for names.
pub const EXIT: Eip = Eip(Ipv4Addr::new(10, 61, 0, 1));

/// The first and the last address that stand for names.
const STANDING: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 61, 0, 2), Ipv4Addr::new(10, 61, 255, 254)];

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
    /// Instances speak IPv4.
    #[error("egress {0}: instances speak IPv4 within the node; write a name for it, whose IPv6 addresses are used")]
    V6(String),
    /// Names that are not known before they are asked for.
    #[error("egress {0}: names below a name are not carried yet; write each name")]
    Below(String),
    /// Names use all addresses.
    #[error("egress {0}: this node's functions declare {1} names at a time, as many as there can be")]
    Full(String, usize),
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

    /// The address by which one more instance knows a destination, and whether it is the first one to know it.
    ///
    /// # Errors
    /// When it cannot be reached from an instance.
    pub fn take(&mut self, to: &Egress) -> Result<(Ipv4Addr, bool), NoPlace> {
        let text = || to.to();
        let address = match &to.host {
            Host::V4(address) => self.literal(*address, to).map(|()| *address),
            Host::Name(name) if name == "localhost" => Err(NoPlace::Loopback(text(), to.port)),
            Host::Name(name) => self.stand_in(name).ok_or_else(|| NoPlace::Full(text(), self.names.len())),
            Host::V6(_) => Err(NoPlace::V6(text())),
            Host::Below(_) => Err(NoPlace::Below(text())),
        }?;
        let users = self.users.entry(address).or_default();
        *users += 1;
        Ok((address, *users == 1))
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 62, 0, 1);

    fn to(text: &str) -> Egress {
        text.parse().unwrap()
    }

    #[test]
    fn a_name_has_one_address_and_an_address_is_its_own() {
        let mut places = Places::new(GATEWAY);
        let (db, first) = places.take(&to("db:5432")).unwrap();
        assert!(first && db != EXIT.0);
        assert_eq!(places.take(&to("db:6379")).unwrap(), (db, false));
        assert!(!places.give_back(db) && places.give_back(db) && !places.give_back(db));
        assert_eq!(places.take(&to("db:5432")).unwrap(), (db, true), "the same as long as the node lives");
        assert_ne!(places.take(&to("other:5432")).unwrap().0, db);
        let literal = Ipv4Addr::new(192, 0, 2, 1);
        assert_eq!(places.take(&to("192.0.2.1:443")).unwrap(), (literal, true));
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
            ("[::1]:80", "write a name"),
            ("*.example.com:443", "write each name"),
        ];
        for (text, told) in said {
            let error = places.take(&to(text)).unwrap_err().to_string();
            assert!(error.contains(told) && error.contains(text), "{text}: {error}");
        }
    }

    #[test]
    fn when_all_are_given_out_names_that_nobody_knows_make_room() {
        let mut places = Places { next: STANDING[1].to_bits(), ..Places::new(GATEWAY) };
        let (last, _) = places.take(&to("a:1")).unwrap();
        assert_eq!(last, STANDING[1]);
        assert!(matches!(places.take(&to("b:1")), Err(NoPlace::Full(..))));
        places.give_back(last);
        assert_eq!(places.take(&to("b:1")).unwrap(), (last, true));
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
                let Ok((address, first)) = places.take(&to(&format!("n{name}.x:1"))) else {
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
