//! Hop limits of single packets: the first ones of a search open the own NAT and expire before the
//! peer's.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;

use nearpath_kernel::sockets::{set_min_hop_count, set_min_ttl};
use rustix::net::sockopt::{set_ip_ttl, set_ipv6_unicast_hops};

/// Value of `IP_TTL` that restores the system's default (-1; Linux `do_ip_setsockopt`).
const DEFAULT_TTL: u32 = u32::MAX;

/// Sets the hop limit of a socket's next packets; `None`: the system's. `base`: its bound address.
pub(super) fn set_hop_limit(
    socket: impl AsFd,
    base: SocketAddr,
    hop_limit: Option<u8>,
) -> io::Result<()> {
    match base {
        SocketAddr::V4(_) => set_ip_ttl(socket, hop_limit.map_or(DEFAULT_TTL, u32::from))?,
        SocketAddr::V6(_) => set_ipv6_unicast_hops(socket, hop_limit)?,
    }
    Ok(())
}

/// Makes a dial ignore the ICMP error of its expired SYN, which would end it (`EHOSTUNREACH`).
///
/// IPv4: the packet that an error quotes must have a hop limit of 2, and an expired one has not.
/// IPv6: the error itself must, so only an error from this link counts. The peer's SYN would not
/// count either, hence [`accept_all_packets`].
pub(super) fn ignore_expiry(socket: impl AsFd, base: SocketAddr) -> io::Result<()> {
    match base {
        SocketAddr::V4(_) => set_min_ttl(socket, 2),
        SocketAddr::V6(_) => set_min_hop_count(socket, u8::MAX),
    }
}

/// Makes a dial over IPv6 receive packets from everywhere again.
pub(super) fn accept_all_packets(socket: impl AsFd, base: SocketAddr) -> io::Result<()> {
    match base {
        SocketAddr::V4(_) => Ok(()),
        SocketAddr::V6(_) => set_min_hop_count(socket, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::sockopt::{ip_ttl, ipv6_unicast_hops};
    use std::net::UdpSocket;

    #[test]
    fn the_hop_limit_is_set_and_restored() {
        for base in ["127.0.0.1:0", "[::1]:0"] {
            let socket = UdpSocket::bind(base).unwrap();
            let base = socket.local_addr().unwrap();
            let read = || match base {
                SocketAddr::V4(_) => ip_ttl(&socket).unwrap(),
                SocketAddr::V6(_) => ipv6_unicast_hops(&socket).unwrap().into(),
            };
            let before = read();
            set_hop_limit(&socket, base, Some(2)).unwrap();
            assert_eq!(read(), 2);
            set_hop_limit(&socket, base, None).unwrap();
            assert_eq!(read(), before);
        }
    }
}
