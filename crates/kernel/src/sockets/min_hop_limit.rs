//! Least hop limit of the packets that a TCP socket takes (RFC 5082).

use std::io;
use std::os::fd::AsFd;

use super::raw_options::set_option;

/// Sets the least hop limit of received packets of an IPv4 socket; 0: any.
///
/// For an ICMP error the packet that it quotes counts (Linux `tcp_v4_err`). With 2 or more the
/// socket thus ignores errors about its own expired packets.
///
/// # Errors
/// Fails when it is not an IP socket.
pub fn set_min_ttl(socket: impl AsFd, min: u8) -> io::Result<()> {
    let value = i32::from(min).to_ne_bytes();
    set_option(socket, libc::IPPROTO_IP, libc::IP_MINTTL, &value)
}

/// Sets the least hop limit of received packets of an IPv6 socket; 0: any.
///
/// For an ICMP error its own header counts, unlike with [`set_min_ttl`] (Linux `tcp_v6_err`).
///
/// # Errors
/// Fails when it is not an IPv6 socket.
pub fn set_min_hop_count(socket: impl AsFd, min: u8) -> io::Result<()> {
    let value = i32::from(min).to_ne_bytes();
    set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_MINHOPCOUNT, &value)
}
