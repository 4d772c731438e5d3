//! Sockets of a network namespace with the values that BPF programs store with them, and their
//! destruction (`sock_diag(7)`).

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use netlink_sys::{Socket, protocols::NETLINK_SOCK_DIAG};

use super::sock_diag::{ATTRIBUTES_OFFSET, REQUEST_LEN, SOCK_DIAG_BY_FAMILY, find_attribute};

/// Message types of `<linux/netlink.h>` and `<linux/sock_diag.h>`.
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const SOCK_DESTROY: u16 = 21;
/// Length of `struct nlmsghdr`.
const HEADER_LEN: usize = 16;
/// Attributes of `<linux/inet_diag.h>` and `<linux/sock_diag.h>`.
const INET_DIAG_REQ_SK_BPF_STORAGES: u16 = 2;
const SK_DIAG_BPF_STORAGE_REQ_MAP_FD: u16 = 1;
const INET_DIAG_INFO: u16 = 2;
const INET_DIAG_MARK: u16 = 15;
const INET_DIAG_SK_BPF_STORAGES: u16 = 20;
const SK_DIAG_BPF_STORAGE: u16 = 1;
const SK_DIAG_BPF_STORAGE_MAP_VALUE: u16 = 3;
/// Position of `struct inet_diag_sockid` in a message: ports, addresses, device and cookie.
const ID_RANGE: std::ops::Range<usize> = HEADER_LEN + 4..HEADER_LEN + 52;
/// Position of `idiag_uid` of `struct inet_diag_msg`.
const UID_RANGE: std::ops::Range<usize> = HEADER_LEN + 64..HEADER_LEN + 68;
/// Positions in `struct inet_diag_sockid`: the own port and address, and the peer's.
const LOCAL_PORT_RANGE: std::ops::Range<usize> = 0..2;
const LOCAL_ADDRESS_RANGE: std::ops::Range<usize> = 4..20;
const PEER_PORT_RANGE: std::ops::Range<usize> = 2..4;
const PEER_ADDRESS_RANGE: std::ops::Range<usize> = 20..36;
/// States of TCP with a peer (`net/tcp_states.h`). Those of UDP are ESTABLISHED with a peer, else CLOSE.
const STATES_WITH_PEER: u32 = {
    const ESTABLISHED: u32 = 1 << 1;
    const SYN_SENT: u32 = 1 << 2;
    const SYN_RECV: u32 = 1 << 3;
    const FIN_WAIT1: u32 = 1 << 4;
    const FIN_WAIT2: u32 = 1 << 5;
    const CLOSE_WAIT: u32 = 1 << 8;
    const LAST_ACK: u32 = 1 << 9;
    const CLOSING: u32 = 1 << 11;
    ESTABLISHED | SYN_SENT | SYN_RECV | FIN_WAIT1 | FIN_WAIT2 | CLOSE_WAIT | LAST_ACK | CLOSING
};
/// The kernel sends at most 32 KiB at a time (`netlink_dump`).
const RECEIVE_BYTES: usize = 65_536;

/// Protocols whose sockets can be listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SocketProtocol {
    Tcp,
    Udp,
}

/// A connected socket of a namespace, whoever holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DumpedSocket {
    pub(crate) protocol: SocketProtocol,
    family: u8,
    /// `struct inet_diag_sockid`, as the kernel wrote it.
    id: [u8; 48],
    /// User that made it.
    pub(crate) uid: u32,
    /// Time since its last byte in either direction, for TCP.
    pub(crate) quiet_time: Option<Duration>,
    /// `SO_MARK`.
    pub(crate) mark: u32,
    /// Value that programs stored with it in the map of the dump. The kernel lists it for TCP only.
    pub(crate) stored: Option<Vec<u8>>,
}

/// A connection to the kernel's socket diagnosis that lists and destroys sockets.
pub(crate) struct SocketDump(Socket);

impl SocketDump {
    /// Opens the calling thread's namespace.
    pub(crate) fn open() -> io::Result<Self> {
        Socket::new(NETLINK_SOCK_DIAG).map(Self)
    }

    /// Lists all connected sockets, with their values in a map of type `BPF_MAP_TYPE_SK_STORAGE`.
    pub(crate) fn list(&self, map: BorrowedFd<'_>) -> io::Result<Vec<DumpedSocket>> {
        let mut found = Vec::new();
        for protocol in [SocketProtocol::Tcp, SocketProtocol::Udp] {
            for family in [libc::AF_INET as u8, libc::AF_INET6 as u8] {
                self.0.send(&encode_dump(family, protocol, map), 0)?;
                self.receive_dump(protocol, &mut found)?;
            }
        }
        Ok(found)
    }

    /// Ends the connection of a socket: its holder gets `ECONNABORTED`, and the peer of TCP a reset.
    /// Returns whether it was found.
    pub(crate) fn destroy(&self, socket: &DumpedSocket) -> io::Result<bool> {
        self.0.send(&socket.encode_destroy(), 0)?;
        let mut answer = Vec::with_capacity(512);
        self.0.recv(&mut answer, 0)?;
        let (_, message, _) = split_message(&answer).ok_or(io::ErrorKind::InvalidData)?;
        match error_of(message) {
            0 => Ok(true),
            // It has ended, or another socket has the same addresses.
            libc::ENOENT | libc::ESTALE => Ok(false),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }

    fn receive_dump(
        &self,
        protocol: SocketProtocol,
        found: &mut Vec<DumpedSocket>,
    ) -> io::Result<()> {
        loop {
            let mut answer = Vec::with_capacity(RECEIVE_BYTES);
            self.0.recv(&mut answer, 0)?;
            let mut rest = &answer[..];
            while let Some((kind, message, after)) = split_message(rest) {
                match (kind, error_of(message)) {
                    (NLMSG_DONE, 0) => return Ok(()),
                    (NLMSG_DONE | NLMSG_ERROR, error) => {
                        return Err(io::Error::from_raw_os_error(error));
                    }
                    _ => found.extend(DumpedSocket::parse(protocol, message)),
                }
                rest = after;
            }
        }
    }
}

impl DumpedSocket {
    fn parse(protocol: SocketProtocol, message: &[u8]) -> Option<Self> {
        let attributes = message.get(ATTRIBUTES_OFFSET..)?;
        let stored = find_attribute(attributes, INET_DIAG_SK_BPF_STORAGES)
            .and_then(|all| find_attribute(all, SK_DIAG_BPF_STORAGE))
            .and_then(|one| find_attribute(one, SK_DIAG_BPF_STORAGE_MAP_VALUE));
        let mark = find_attribute(attributes, INET_DIAG_MARK).and_then(<[u8]>::first_chunk);
        Some(Self {
            protocol,
            family: *message.get(HEADER_LEN)?,
            id: message.get(ID_RANGE)?.try_into().ok()?,
            uid: u32::from_ne_bytes(message.get(UID_RANGE)?.try_into().ok()?),
            quiet_time: find_attribute(attributes, INET_DIAG_INFO).and_then(parse_quiet_time),
            mark: mark.map_or(0, |mark| u32::from_ne_bytes(*mark)),
            stored: stored.map(<[u8]>::to_vec),
        })
    }

    /// Returns a socket with this peer, for tests.
    #[cfg(test)]
    pub(crate) fn with_peer(protocol: SocketProtocol, peer: std::net::SocketAddrV4) -> Self {
        let mut id = [0; 48];
        id[PEER_PORT_RANGE].copy_from_slice(&peer.port().to_be_bytes());
        id[PEER_ADDRESS_RANGE][..4].copy_from_slice(&peer.ip().octets());
        Self {
            protocol,
            family: libc::AF_INET as u8,
            id,
            uid: 0,
            quiet_time: None,
            mark: 0,
            stored: None,
        }
    }

    /// Sets its own address, for tests.
    #[cfg(test)]
    pub(crate) fn set_local(&mut self, local: std::net::SocketAddrV4) {
        self.id[LOCAL_PORT_RANGE].copy_from_slice(&local.port().to_be_bytes());
        self.id[LOCAL_ADDRESS_RANGE][..4].copy_from_slice(&local.ip().octets());
    }

    /// Returns the peer's address if it is one of IPv4, also as a mapped one.
    pub(crate) fn ipv4_peer(&self) -> Option<Ipv4Addr> {
        self.ipv4_at(PEER_ADDRESS_RANGE)
    }

    /// Returns its own address if it is one of IPv4, also as a mapped one.
    pub(crate) fn ipv4_local(&self) -> Option<Ipv4Addr> {
        self.ipv4_at(LOCAL_ADDRESS_RANGE)
    }

    /// Returns its own port.
    pub(crate) fn local_port(&self) -> u16 {
        self.port_at(LOCAL_PORT_RANGE)
    }

    /// Returns the peer's port.
    pub(crate) fn peer_port(&self) -> u16 {
        self.port_at(PEER_PORT_RANGE)
    }

    fn port_at(&self, range: std::ops::Range<usize>) -> u16 {
        let octets = self.id[range].first_chunk();
        octets.map_or(0, |octets| u16::from_be_bytes(*octets))
    }

    fn ipv4_at(&self, range: std::ops::Range<usize>) -> Option<Ipv4Addr> {
        let octets: [u8; 16] = self.id[range].try_into().ok()?;
        if self.family == libc::AF_INET as u8 {
            let [a, b, c, d, ..] = octets;
            return Some([a, b, c, d].into());
        }
        Ipv6Addr::from(octets).to_ipv4_mapped()
    }

    /// Returns whether it has a peer. A socket of UDP may lose it between two steps of a listing.
    pub(crate) fn has_peer(&self) -> bool {
        self.peer_port() != 0
    }

    fn encode_destroy(&self) -> Vec<u8> {
        let flags = libc::NLM_F_REQUEST | libc::NLM_F_ACK;
        let mut request = encode_header(REQUEST_LEN, SOCK_DESTROY, flags);
        request.extend(encode_selection(self.family, self.protocol));
        request.extend(self.id);
        request
    }
}

/// Encodes a request for sockets with any addresses, which attributes of so many bytes follow.
fn encode_plain_dump(family: u8, protocol: SocketProtocol, attributes: u32) -> Vec<u8> {
    let flags = libc::NLM_F_REQUEST | libc::NLM_F_DUMP;
    let mut request = encode_header(REQUEST_LEN + attributes, SOCK_DIAG_BY_FAMILY, flags);
    request.extend(encode_selection(family, protocol));
    request.extend([0; 48]);
    request
}

fn encode_dump(family: u8, protocol: SocketProtocol, map: BorrowedFd<'_>) -> Vec<u8> {
    let mut request = encode_plain_dump(family, protocol, 12);
    for (length, kind) in [
        (12_u16, INET_DIAG_REQ_SK_BPF_STORAGES),
        (8, SK_DIAG_BPF_STORAGE_REQ_MAP_FD),
    ] {
        request.extend([length.to_ne_bytes(), kind.to_ne_bytes()].concat());
    }
    request.extend(map.as_raw_fd().to_ne_bytes());
    request
}

fn encode_header(length: u32, kind: u16, flags: i32) -> Vec<u8> {
    let mut header = Vec::with_capacity(length as usize);
    header.extend(length.to_ne_bytes());
    header.extend(kind.to_ne_bytes());
    header.extend((flags as u16).to_ne_bytes());
    header.extend([0; 8]); // sequence and port; the kernel replies to the sender anyway
    header
}

/// Encodes the start of `struct inet_diag_req_v2`.
fn encode_selection(family: u8, protocol: SocketProtocol) -> [u8; 8] {
    let number = match protocol {
        SocketProtocol::Tcp => libc::IPPROTO_TCP,
        SocketProtocol::Udp => libc::IPPROTO_UDP,
    };
    let [a, b, c, d] = STATES_WITH_PEER.to_ne_bytes();
    let extensions = 1 << (INET_DIAG_INFO - 1);
    [family, number as u8, extensions, 0, a, b, c, d]
}

/// Reads the shorter one of `tcpi_last_data_sent` and `tcpi_last_data_recv` (`<linux/tcp.h>`), in milliseconds.
fn parse_quiet_time(info: &[u8]) -> Option<Duration> {
    let millis = |at: usize| {
        let bytes = info.get(at..)?.first_chunk()?;
        Some(u32::from_ne_bytes(*bytes))
    };
    let quiet = millis(44)?.min(millis(52)?);
    Some(Duration::from_millis(quiet.into()))
}

/// Splits off the first message. Returns its type, itself, and what follows.
fn split_message(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let (head, _) = bytes.split_first_chunk::<HEADER_LEN>()?;
    let length = u32::from_ne_bytes([head[0], head[1], head[2], head[3]]) as usize;
    let message = bytes.get(..length.max(HEADER_LEN))?;
    let kind = u16::from_ne_bytes([head[4], head[5]]);
    let after = bytes.get(message.len().next_multiple_of(4)..);
    Some((kind, message, after.unwrap_or_default()))
}

/// Returns the error number of a message of type NLMSG_ERROR or NLMSG_DONE; 0 is success.
fn error_of(message: &[u8]) -> i32 {
    let code = message.get(HEADER_LEN..).and_then(<[u8]>::first_chunk);
    code.map_or(libc::EBADMSG, |code| -i32::from_ne_bytes(*code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_split() {
        let mut bytes = encode_header(18, NLMSG_ERROR, 0);
        bytes.extend([1, 2, 0, 0]); // two octets and padding
        bytes.extend(encode_header(16, NLMSG_DONE, 0));
        let (kind, message, rest) = split_message(&bytes).unwrap();
        assert_eq!((kind, message.len()), (NLMSG_ERROR, 18));
        let (kind, message, rest) = split_message(rest).unwrap();
        assert_eq!((kind, message.len()), (NLMSG_DONE, 16));
        assert_eq!(split_message(rest), None);
        assert_eq!(split_message(&bytes[..17]), None, "cut off");
    }

    #[test]
    fn a_peer_of_ipv4_is_found_in_both_families() {
        let none = "10.62.0.3:0".parse().unwrap();
        let mut socket = DumpedSocket::with_peer(SocketProtocol::Tcp, none);
        assert!(!socket.has_peer());
        assert_eq!(socket.ipv4_peer(), Some([10, 62, 0, 3].into()));
        socket.family = libc::AF_INET6 as u8;
        assert_eq!(socket.ipv4_peer(), None);
        let mapped = Ipv4Addr::new(10, 62, 0, 3).to_ipv6_mapped();
        socket.id[PEER_ADDRESS_RANGE].copy_from_slice(&mapped.octets());
        assert_eq!(socket.ipv4_peer(), Some([10, 62, 0, 3].into()));
    }
}
