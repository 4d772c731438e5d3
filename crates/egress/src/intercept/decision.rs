//! Decides from facts alone whether a warm socket may replace the caller's.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use nearpath_connpool::destination::EgressDestination;

/// Family of a socket. [`SocketFamily::V6`] reaches IPv4 addresses by their mapped form; Java
/// programs use no others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SocketFamily {
    /// `AF_INET`.
    V4,
    /// `AF_INET6`.
    V6,
}

/// Reason why a connect is passed through to the egress proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PassThroughReason {
    /// No warm socket is available now.
    Empty,
    /// The socket is not a TCP socket of the address's family.
    WrongKind,
    /// The socket is bound or was used before.
    NotNew,
    /// The socket sends signals (`O_ASYNC`) or has other flags that a new one lacks.
    OddFlags,
    /// Another descriptor refers to the same socket.
    Duplicated,
    /// The socket is registered with an epoll instance, which would keep watching the old one.
    Watched,
    /// The process has too many descriptors to search.
    TooManyDescriptors,
    /// An option is set that cannot be copied to another socket.
    FixedOption(&'static str),
    /// The caller or the socket cannot be inspected: it has ended, or the kernel refuses.
    Unreadable,
}

impl PassThroughReason {
    /// Returns the label of the reason for counters.
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

/// Parses a `struct sockaddr_in` or `sockaddr_in6`; mapped addresses become IPv4. The length is the
/// caller's.
pub(super) fn parse_address(address: &[u8]) -> Option<(SocketFamily, IpAddr, u16)> {
    // Linux address families, in the byte order of the machine.
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
        // `struct sockaddr_in6` has 28 bytes; shorter forms are left to the kernel.
        (INET6, 28) => {
            let host = Ipv6Addr::from(*address.get(8..)?.first_chunk::<16>()?);
            Some((SocketFamily::V6, host.to_canonical(), port))
        }
        _ => None,
    }
}

/// Returns the address for which a destination has warm sockets to hand over, if it has any.
pub(super) fn interceptable_addr(to: &EgressDestination) -> Option<SocketAddr> {
    to.can_be_handed_over().then(|| to.visible_addr())
}

/// Returns the family of a destination's warm sockets by default.
pub(super) fn native_family(address: SocketAddr) -> SocketFamily {
    if address.is_ipv4() {
        SocketFamily::V4
    } else {
        SocketFamily::V6
    }
}

/// Returns the number of the destination that an address means.
pub(super) fn find_destination(
    address: &[u8],
    addresses: &[Option<SocketAddr>],
) -> Option<(usize, SocketFamily)> {
    let (family, host, port) = parse_address(address)?;
    let target = Some(SocketAddr::new(host, port));
    addresses
        .iter()
        .position(|address| *address == target)
        .map(|number| (number, family))
}

/// Properties of a socket, apart from its options.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SocketFacts {
    /// Family if it is a TCP socket.
    pub(super) family: Option<SocketFamily>,
    /// True if it is in the state of a new socket.
    pub(super) closed: bool,
    /// True if it has a local port or address.
    pub(super) bound: bool,
    /// True if it has other flags than access mode and `O_NONBLOCK`.
    pub(super) odd_flags: bool,
}

impl SocketFacts {
    /// Checks that another socket may replace this one.
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
        fn both_forms_of_an_address_are_parsed(host: u32, port: u16) {
            let host = Ipv4Addr::from_bits(host);
            prop_assert_eq!(parse_address(&sockaddr_v4(host, port)), Some((SocketFamily::V4, host.into(), port)));
            prop_assert_eq!(parse_address(&sockaddr_mapped(host, port)), Some((SocketFamily::V6, host.into(), port)));
        }

        #[test]
        fn no_bytes_make_the_parser_panic(address in prop::collection::vec(any::<u8>(), 0..40)) {
            let _ = parse_address(&address);
        }
    }

    #[test]
    fn addresses_without_warm_sockets_match_no_destination() {
        let (host, port) = (Ipv4Addr::new(10, 61, 0, 2), 80);
        let addresses = [None, Some(SocketAddr::new(host.into(), port))];
        assert_eq!(
            find_destination(&sockaddr_v4(host, port), &addresses),
            Some((1, SocketFamily::V4))
        );
        assert_eq!(
            find_destination(&sockaddr_mapped(host, port), &addresses),
            Some((1, SocketFamily::V6))
        );
        assert_eq!(find_destination(&sockaddr_v4(host, 81), &addresses), None);
        assert_eq!(
            find_destination(&sockaddr_v4(Ipv4Addr::LOCALHOST, port), &addresses),
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
        let addresses = [Some(SocketAddr::new(host.into(), 443))];
        assert_eq!(
            find_destination(&plain, &addresses),
            Some((0, SocketFamily::V6))
        );
        assert_eq!(
            (
                native_family(addresses[0].unwrap()),
                find_destination(&plain[..27], &addresses)
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
        for (facts, reason) in [
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
            assert_eq!(facts.check_replaceable(SocketFamily::V4), Err(reason));
        }
    }
}
