//! Whether a warm socket may take the place of the caller's: decisions from facts alone.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use nearpath_connpool::destination::EgressDestination;

/// The family of a socket. One of [`SocketFamily::IPV6_FLAG`] reaches IPv4 addresses by their mapped form: programs in Java have no others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SocketFamily {
    /// `AF_INET`.
    V4,
    /// `AF_INET6`.
    V6,
}

/// Why a call to a destination with warm sockets was left to the way out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PassThroughReason {
    /// There is no warm socket at the moment.
    Empty,
    /// The socket is not a TCP socket of the address's family.
    WrongKind,
    /// It is bound, or was used before.
    NotNew,
    /// It sends signals (`O_ASYNC`), or is something else that no flag of a new socket says.
    OddFlags,
    /// Another descriptor means the same socket.
    Duplicated,
    /// It is registered with an epoll, which would go on watching the socket that was there before.
    Watched,
    /// There are too many descriptors to look at all.
    TooManyDescriptors,
    /// An option is set that no other socket can have.
    FixedOption(&'static str),
    /// The caller, or the socket, could not be looked at: it ended meanwhile, or the kernel does not allow it.
    Unreadable,
}

impl PassThroughReason {
    /// In one word, for counters.
    pub fn label(self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::WrongKind => "kind",
            Self::NotNew => "used",
            Self::OddFlags => "flags",
            Self::Duplicated => "duplicated",
            Self::Watched => "watched",
            Self::TooManyDescriptors => "crowded",
            Self::FixedOption(name) => name,
            Self::Unreadable => "hidden",
        }
    }
}

/// Where a `struct sockaddr_in` or `sockaddr_in6` leads, a mapped address to the IPv4 one; the length is the caller's.
pub(super) fn parse_address(address: &[u8]) -> Option<(SocketFamily, IpAddr, u16)> {
    const INET: u16 = 2;
    const INET6: u16 = 10;
    let family = u16::from_ne_bytes(*address.first_chunk()?);
    let port = u16::from_be_bytes(*address.get(2..)?.first_chunk()?);
    match (family, address.len()) {
        (INET, _) => Some((
            SocketFamily::V4,
            Ipv4Addr::from(*address.get(4..)?.first_chunk::<4>()?).into(),
            port,
        )),
        (INET6, 28) => {
            let host = Ipv6Addr::from(*address.get(8..)?.first_chunk::<16>()?);
            Some((SocketFamily::V6, host.to_canonical(), port))
        }
        _ => None,
    }
}

/// Where a destination's warm sockets are for, if it has some that may be given away.
pub(super) fn interceptable_addr(to: &EgressDestination) -> Option<SocketAddr> {
    to.can_be_handed_over().then(|| to.visible_addr())
}

/// The family of the sockets that a destination has without being asked for another one.
pub(super) fn native_family(place: SocketAddr) -> SocketFamily {
    if place.is_ipv4() {
        SocketFamily::V4
    } else {
        SocketFamily::V6
    }
}

/// The number of the place that an address means.
pub(super) fn find_destination(
    address: &[u8],
    places: &[Option<SocketAddr>],
) -> Option<(usize, SocketFamily)> {
    let (family, host, port) = parse_address(address)?;
    let meant = Some(SocketAddr::new(host, port));
    places
        .iter()
        .position(|place| *place == meant)
        .map(|number| (number, family))
}

/// What a socket is, apart from its options.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SocketFacts {
    /// Its family, if it is a TCP socket.
    pub(super) family: Option<SocketFamily>,
    /// Whether it is closed, as a new one is.
    pub(super) closed: bool,
    /// Whether it has a port of its own.
    pub(super) bound: bool,
    /// Whether it has another flag than to be read, written, or not to block.
    pub(super) odd_flags: bool,
}

impl SocketFacts {
    /// Whether another socket may take the place of this one.
    pub(super) fn check_replaceable(&self, family: SocketFamily) -> Result<(), PassThroughReason> {
        match self {
            Self { family: own, .. } if *own != Some(family) => Err(PassThroughReason::WrongKind),
            Self { closed: false, .. } | Self { bound: true, .. } => Err(PassThroughReason::NotNew),
            Self {
                odd_flags: true, ..
            } => Err(PassThroughReason::OddFlags),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sockaddr_v4(host: Ipv4Addr, port: u16) -> Vec<u8> {
        [
            &2_u16.to_ne_bytes()[..],
            &port.to_be_bytes(),
            &host.octets(),
            &[0; 8],
        ]
        .concat()
    }

    fn sockaddr_mapped(host: Ipv4Addr, port: u16) -> Vec<u8> {
        let address = host.to_ipv6_mapped().octets();
        [
            &10_u16.to_ne_bytes()[..],
            &port.to_be_bytes(),
            &[0; 4],
            &address,
            &[0; 4],
        ]
        .concat()
    }

    proptest! {
        #[test]
        fn both_forms_of_an_address_mean_it(host: u32, port: u16) {
            let host = Ipv4Addr::from_bits(host);
            prop_assert_eq!(parse_address(&sockaddr_v4(host, port)), Some((SocketFamily::V4, host.into(), port)));
            prop_assert_eq!(parse_address(&sockaddr_mapped(host, port)), Some((SocketFamily::V6, host.into(), port)));
        }

        #[test]
        fn no_octets_make_it_fail(address in prop::collection::vec(any::<u8>(), 0..40)) {
            let _ = parse_address(&address);
        }
    }

    #[test]
    fn addresses_without_warm_sockets_match_no_destination() {
        let (host, port) = (Ipv4Addr::new(10, 61, 0, 2), 80);
        let places = [None, Some(SocketAddr::new(host.into(), port))];
        assert_eq!(
            find_destination(&sockaddr_v4(host, port), &places),
            Some((1, SocketFamily::V4))
        );
        assert_eq!(
            find_destination(&sockaddr_mapped(host, port), &places),
            Some((1, SocketFamily::V6))
        );
        assert_eq!(find_destination(&sockaddr_v4(host, 81), &places), None);
        assert_eq!(
            find_destination(&sockaddr_v4(Ipv4Addr::LOCALHOST, port), &places),
            None
        );
    }

    #[test]
    fn other_address_families_are_not_parsed() {
        let host = Ipv4Addr::LOCALHOST;
        assert_eq!(parse_address(&[]), None);
        assert_eq!(parse_address(&sockaddr_v4(host, 1)[..7]), None);
        for family in [0_u16, 1, 16] {
            let mut address = sockaddr_v4(host, 1);
            address[..2].copy_from_slice(&family.to_ne_bytes());
            assert_eq!(parse_address(&address), None);
        }
    }

    #[test]
    fn an_ipv6_address_is_not_mapped() {
        let mut plain = sockaddr_mapped(Ipv4Addr::LOCALHOST, 443);
        plain[8] = 0x20;
        let host = Ipv6Addr::from(*plain[8..].first_chunk::<16>().unwrap());
        assert_eq!(
            parse_address(&plain),
            Some((SocketFamily::V6, host.into(), 443))
        );
        let places = [Some(SocketAddr::new(host.into(), 443))];
        assert_eq!(
            find_destination(&plain, &places),
            Some((0, SocketFamily::V6))
        );
        assert_eq!(
            (
                native_family(places[0].unwrap()),
                find_destination(&plain[..27], &places)
            ),
            (SocketFamily::V6, None)
        );
    }

    #[test]
    fn any_difference_from_a_new_socket_passes_the_call_through() {
        let new = SocketFacts {
            family: Some(SocketFamily::V4),
            closed: true,
            bound: false,
            odd_flags: false,
        };
        assert_eq!(new.check_replaceable(SocketFamily::V4), Ok(()));
        assert_eq!(
            new.check_replaceable(SocketFamily::V6),
            Err(PassThroughReason::WrongKind)
        );
        for (odd, doubt) in [
            (
                SocketFacts {
                    family: None,
                    ..new
                },
                PassThroughReason::WrongKind,
            ),
            (
                SocketFacts {
                    closed: false,
                    ..new
                },
                PassThroughReason::NotNew,
            ),
            (
                SocketFacts { bound: true, ..new },
                PassThroughReason::NotNew,
            ),
            (
                SocketFacts {
                    odd_flags: true,
                    ..new
                },
                PassThroughReason::OddFlags,
            ),
        ] {
            assert_eq!(odd.check_replaceable(SocketFamily::V4), Err(doubt));
        }
    }
}
