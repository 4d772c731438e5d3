//! Whether a warm socket may take the place of the caller's: decisions from facts alone.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use nearpath_connpool::destination::Destination;

/// The family of a socket. One of [`Family::V6`] reaches IPv4 addresses by their mapped form: programs in Java have no others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    /// `AF_INET`.
    V4,
    /// `AF_INET6`.
    V6,
}

/// Why a call to a destination with warm sockets was left to the way out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doubt {
    /// There is no warm socket at the moment.
    Empty,
    /// The socket is not a TCP socket of the address's family.
    Kind,
    /// It is bound, or was used before.
    Used,
    /// It sends signals (`O_ASYNC`), or is something else that no flag of a new socket says.
    Flags,
    /// Another descriptor means the same socket.
    Duplicated,
    /// It is registered with an epoll, which would go on watching the socket that was there before.
    Watched,
    /// There are too many descriptors to look at all.
    Crowded,
    /// An option is set that no other socket can have.
    Option(&'static str),
    /// The caller, or the socket, could not be looked at: it ended meanwhile, or the kernel does not allow it.
    Hidden,
}

impl Doubt {
    /// In one word, for counters.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::Kind => "kind",
            Self::Used => "used",
            Self::Flags => "flags",
            Self::Duplicated => "duplicated",
            Self::Watched => "watched",
            Self::Crowded => "crowded",
            Self::Option(name) => name,
            Self::Hidden => "hidden",
        }
    }
}

/// Where a `struct sockaddr_in` or `sockaddr_in6` leads, a mapped address to the IPv4 one; the length is the caller's.
pub(super) fn target(address: &[u8]) -> Option<(Family, IpAddr, u16)> {
    const INET: u16 = 2;
    const INET6: u16 = 10;
    let family = u16::from_ne_bytes(*address.first_chunk()?);
    let port = u16::from_be_bytes(*address.get(2..)?.first_chunk()?);
    match (family, address.len()) {
        (INET, _) => Some((Family::V4, Ipv4Addr::from(*address.get(4..)?.first_chunk::<4>()?).into(), port)),
        (INET6, 28) => {
            let host = Ipv6Addr::from(*address.get(8..)?.first_chunk::<16>()?);
            Some((Family::V6, host.to_canonical(), port))
        }
        _ => None,
    }
}

/// Where a destination's warm sockets are for, if it has some that may be given away.
pub(super) fn place(to: &Destination) -> Option<SocketAddr> {
    to.may_be_given().then(|| to.place())
}

/// The family of the sockets that a destination has without being asked for another one.
pub(super) fn native(place: SocketAddr) -> Family {
    if place.is_ipv4() { Family::V4 } else { Family::V6 }
}

/// The number of the place that an address means.
pub(super) fn wanted(address: &[u8], places: &[Option<SocketAddr>]) -> Option<(usize, Family)> {
    let (family, host, port) = target(address)?;
    let meant = Some(SocketAddr::new(host, port));
    places.iter().position(|place| *place == meant).map(|number| (number, family))
}

/// What a socket is, apart from its options.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Nature {
    /// Its family, if it is a TCP socket.
    pub(super) family: Option<Family>,
    /// Whether it is closed, as a new one is.
    pub(super) closed: bool,
    /// Whether it has a port of its own.
    pub(super) bound: bool,
    /// Whether it has another flag than to be read, written, or not to block.
    pub(super) odd_flags: bool,
}

impl Nature {
    /// Whether another socket may take the place of this one.
    pub(super) fn replaceable(&self, family: Family) -> Result<(), Doubt> {
        match self {
            Self { family: own, .. } if *own != Some(family) => Err(Doubt::Kind),
            Self { closed: false, .. } | Self { bound: true, .. } => Err(Doubt::Used),
            Self { odd_flags: true, .. } => Err(Doubt::Flags),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn v4(host: Ipv4Addr, port: u16) -> Vec<u8> {
        [&2_u16.to_ne_bytes()[..], &port.to_be_bytes(), &host.octets(), &[0; 8]].concat()
    }

    fn mapped(host: Ipv4Addr, port: u16) -> Vec<u8> {
        let address = host.to_ipv6_mapped().octets();
        [&10_u16.to_ne_bytes()[..], &port.to_be_bytes(), &[0; 4], &address, &[0; 4]].concat()
    }

    proptest! {
        #[test]
        fn both_forms_of_an_address_mean_it(host: u32, port: u16) {
            let host = Ipv4Addr::from_bits(host);
            prop_assert_eq!(target(&v4(host, port)), Some((Family::V4, host.into(), port)));
            prop_assert_eq!(target(&mapped(host, port)), Some((Family::V6, host.into(), port)));
        }

        #[test]
        fn no_octets_make_it_fail(address in prop::collection::vec(any::<u8>(), 0..40)) {
            let _ = target(&address);
        }
    }

    #[test]
    fn what_nothing_is_kept_warm_for_is_not_wanted() {
        let (host, port) = (Ipv4Addr::new(10, 61, 0, 2), 80);
        let places = [None, Some(SocketAddr::new(host.into(), port))];
        assert_eq!(wanted(&v4(host, port), &places), Some((1, Family::V4)));
        assert_eq!(wanted(&mapped(host, port), &places), Some((1, Family::V6)));
        assert_eq!(wanted(&v4(host, 81), &places), None);
        assert_eq!(wanted(&v4(Ipv4Addr::LOCALHOST, port), &places), None);
    }

    #[test]
    fn other_families_lead_nowhere() {
        let host = Ipv4Addr::LOCALHOST;
        assert_eq!(target(&[]), None);
        assert_eq!(target(&v4(host, 1)[..7]), None);
        for family in [0_u16, 1, 16] {
            let mut address = v4(host, 1);
            address[..2].copy_from_slice(&family.to_ne_bytes());
            assert_eq!(target(&address), None);
        }
    }

    #[test]
    fn an_ipv6_address_means_itself() {
        let mut plain = mapped(Ipv4Addr::LOCALHOST, 443);
        plain[8] = 0x20;
        let host = Ipv6Addr::from(*plain[8..].first_chunk::<16>().unwrap());
        assert_eq!(target(&plain), Some((Family::V6, host.into(), 443)));
        let places = [Some(SocketAddr::new(host.into(), 443))];
        assert_eq!(wanted(&plain, &places), Some((0, Family::V6)));
        assert_eq!((native(places[0].unwrap()), wanted(&plain[..27], &places)), (Family::V6, None));
    }

    #[test]
    fn any_difference_from_a_new_socket_is_a_doubt() {
        let new = Nature { family: Some(Family::V4), closed: true, bound: false, odd_flags: false };
        assert_eq!(new.replaceable(Family::V4), Ok(()));
        assert_eq!(new.replaceable(Family::V6), Err(Doubt::Kind));
        for (odd, doubt) in [
            (Nature { family: None, ..new }, Doubt::Kind),
            (Nature { closed: false, ..new }, Doubt::Used),
            (Nature { bound: true, ..new }, Doubt::Used),
            (Nature { odd_flags: true, ..new }, Doubt::Flags),
        ] {
            assert_eq!(odd.replaceable(Family::V4), Err(doubt));
        }
    }
}
