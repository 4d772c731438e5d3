//! Detection of closed sockets that were given away (`sock_diag(7)`).
//!
//! Keeping a descriptor to watch would keep the connection open. The kernel is asked instead
//! ([`SockDiag`]), or reports closed sockets ([`CloseMonitor`]).

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};

use netlink_sys::{Socket, protocols::NETLINK_SOCK_DIAG};

use super::flow_info::TcpFlowInfo;
use super::raw_options::get_option;

pub(super) const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// Groups SKNLGRP_INET_TCP_DESTROY and SKNLGRP_INET6_TCP_DESTROY of `linux/sock_diag.h`.
const DESTROY_GROUPS: [u32; 2] = [1, 3];
/// Position of the cookie in a message: after `struct nlmsghdr`, in `struct inet_diag_msg`.
const COOKIE_RANGE: std::ops::Range<usize> = 16 + 44..16 + 52;
/// Positions of the state and of the inode, which is 0 when no process holds the socket.
const STATE_OFFSET: usize = 16 + 1;
const INODE_RANGE: std::ops::Range<usize> = 16 + 68..16 + 72;
/// Position of the attributes: after the 72 octets of `struct inet_diag_msg`.
pub(super) const ATTRIBUTES_OFFSET: usize = 16 + 72;
/// Attribute with `struct tcp_info` (`linux/inet_diag.h`).
const INET_DIAG_INFO: u16 = 2;
/// Length of `struct nlmsghdr` and `struct inet_diag_req_v2`.
pub(super) const REQUEST_LEN: u32 = 16 + 56;

/// Identifies a connected TCP socket of this namespace, also after it was given away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketIdentity {
    family: u8,
    local: SocketAddr,
    peer: SocketAddr,
    cookie: u64,
}

impl SocketIdentity {
    /// Identifies a connected socket.
    ///
    /// # Errors
    /// Fails when it is not connected over IP.
    pub fn of(socket: impl AsFd) -> io::Result<Self> {
        let (local, mut cookie) = (
            SocketAddr::try_from(rustix::net::getsockname(&socket)?)?,
            [0; 8],
        );
        let peer = rustix::net::getpeername(&socket)?.ok_or(io::ErrorKind::NotConnected)?;
        get_option(&socket, libc::SOL_SOCKET, libc::SO_COOKIE, &mut cookie)?;
        let family = if local.is_ipv4() {
            libc::AF_INET
        } else {
            libc::AF_INET6
        } as u8;
        Ok(Self {
            family,
            local,
            peer: peer.try_into()?,
            cookie: u64::from_ne_bytes(cookie),
        })
    }

    /// Returns the cookie, which [`CloseMonitor`] reports.
    pub fn cookie(&self) -> u64 {
        self.cookie
    }

    /// Encodes a request for exactly this socket.
    fn encode_request(&self) -> Vec<u8> {
        let mut request = Vec::with_capacity(REQUEST_LEN as usize);
        request.extend(REQUEST_LEN.to_ne_bytes());
        request.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        request.extend((libc::NLM_F_REQUEST as u16).to_ne_bytes());
        request.extend([0; 8]); // sequence and port; the kernel replies to the sender anyway
        request.extend([self.family, libc::IPPROTO_TCP as u8, 0, 0]);
        request.extend(u32::MAX.to_ne_bytes()); // sockets in every state
        request.extend(
            [
                self.local.port().to_be_bytes(),
                self.peer.port().to_be_bytes(),
            ]
            .concat(),
        );
        request.extend(
            [
                address_words(self.local.ip()),
                address_words(self.peer.ip()),
            ]
            .concat(),
        );
        request.extend(0_u32.to_ne_bytes()); // on any device
        request.extend((self.cookie as u32).to_ne_bytes());
        request.extend(((self.cookie >> 32) as u32).to_ne_bytes());
        request
    }
}

/// Encodes an address in four words, as both families use. IPv4 uses only the first.
fn address_words(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => (u128::from(v4.to_bits()) << 96).to_be_bytes(),
        IpAddr::V6(v6) => Ipv6Addr::octets(&v6),
    }
}

/// A connection to the kernel's socket diagnosis in one network namespace.
pub struct SockDiag(Socket);

impl SockDiag {
    /// Opens the calling thread's namespace.
    ///
    /// # Errors
    /// Fails with too many open files, or without `sock_diag` in the kernel.
    pub fn open() -> io::Result<Self> {
        Socket::new(NETLINK_SOCK_DIAG).map(Self)
    }

    /// Returns whether the kernel still has a socket, whoever holds it, until its peer has
    /// acknowledged the close. Never waits.
    ///
    /// # Errors
    /// Fails when the kernel cannot answer.
    pub fn is_open(&self, socket: &SocketIdentity) -> io::Result<bool> {
        const NLMSG_ERROR: u16 = 2;
        self.0.send(&socket.encode_request(), 0)?;
        let mut answer = Vec::with_capacity(512);
        // Never blocks: the kernel handles a request while it is sent, so the reply is there.
        self.0.recv(&mut answer, libc::MSG_DONTWAIT)?;
        match answer.get(4..6).zip(answer.get(16..20)) {
            Some((kind, _)) if kind == SOCK_DIAG_BY_FAMILY.to_ne_bytes() => {
                Ok(!is_acknowledged(&answer))
            }
            Some((kind, error)) if kind == NLMSG_ERROR.to_ne_bytes() => {
                let error = -i32::from_ne_bytes([error[0], error[1], error[2], error[3]]);
                match error {
                    // ESTALE: another socket has the same addresses, with another cookie.
                    libc::ENOENT | libc::ESTALE => Ok(false),
                    other => Err(io::Error::from_raw_os_error(other)),
                }
            }
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// Returns whether a socket only waits for late packets: no process holds it, and its peer has
/// acknowledged the close. [`CloseMonitor`] has reported it by then.
fn is_acknowledged(answer: &[u8]) -> bool {
    const FIN_WAIT2: u8 = 5; // `net/tcp_states.h`
    const TIME_WAIT: u8 = 6;
    let state = answer.get(STATE_OFFSET);
    let is_waiting = state.is_some_and(|state| [FIN_WAIT2, TIME_WAIT].contains(state));
    is_waiting && answer.get(INODE_RANGE) == Some(&[0; 4])
}

/// Reports every TCP socket of one network namespace that the kernel frees. Non-blocking; readable
/// when a report waits.
pub struct CloseMonitor(Socket);

/// A socket that the kernel has freed.
#[derive(Debug, Clone, Copy)]
pub struct ClosedSocket {
    /// Cookie of its [`SocketIdentity`].
    pub cookie: u64,
    /// Last path measurements, if the kernel reports them.
    pub flow_info: Option<TcpFlowInfo>,
}

impl ClosedSocket {
    fn parse_message(message: &[u8]) -> Option<Self> {
        let cookie = u64::from_ne_bytes(message.get(COOKIE_RANGE)?.try_into().ok()?);
        let flow = message
            .get(ATTRIBUTES_OFFSET..)
            .and_then(|rest| find_attribute(rest, INET_DIAG_INFO))
            .and_then(TcpFlowInfo::parse_info);
        Some(Self {
            cookie,
            flow_info: flow,
        })
    }
}

/// `NLA_TYPE_MASK` of `linux/netlink.h`: the other bits are flags.
const ATTRIBUTE_TYPE_MASK: u16 = 0x3fff;

/// Returns the content of an attribute in a sequence of attributes.
pub(super) fn find_attribute(mut rest: &[u8], kind: u16) -> Option<&[u8]> {
    loop {
        let (&[a, b, c, d], _) = rest.split_first_chunk::<4>()?;
        let (length, found) = (
            usize::from(u16::from_ne_bytes([a, b])),
            u16::from_ne_bytes([c, d]) & ATTRIBUTE_TYPE_MASK,
        );
        if found == kind {
            return rest.get(4..length);
        }
        // At least a header: a length of 0 would repeat the same attribute for ever.
        rest = rest.get(length.max(4).next_multiple_of(4)..)?;
    }
}

impl CloseMonitor {
    /// Opens the calling thread's namespace. Only later closes are reported.
    ///
    /// # Errors
    /// Fails like [`SockDiag::open`].
    pub fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_SOCK_DIAG)?;
        socket.bind_auto()?;
        for group in DESTROY_GROUPS {
            socket.add_membership(group)?;
        }
        socket.set_non_blocking(true)?;
        Ok(Self(socket))
    }

    /// Returns the next closed socket; `None` if there is none at the moment.
    ///
    /// # Errors
    /// Fails with `ENOBUFS` after an overflow: ask for each socket instead.
    pub fn next_closed(&self) -> io::Result<Option<ClosedSocket>> {
        let mut message = Vec::with_capacity(1024);
        match self.0.recv(&mut message, 0) {
            Ok(_) => Ok(Some(
                ClosedSocket::parse_message(&message).ok_or(io::ErrorKind::InvalidData)?,
            )),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl AsFd for CloseMonitor {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for CloseMonitor {
    fn as_raw_fd(&self) -> i32 {
        self.0.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_closed_socket_is_reported() {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let monitor = CloseMonitor::open().unwrap();
        for at in ["127.0.0.1:0", "[::1]:0"] {
            let server = TcpListener::bind(at).unwrap();
            let socket = TcpStream::connect(server.local_addr().unwrap()).unwrap();
            let (peer, identity) = (
                server.accept().unwrap(),
                SocketIdentity::of(&socket).unwrap(),
            );
            (&socket).write_all(&[7; 300_000]).unwrap();
            let (mut peer, _) = peer;
            peer.read_exact(&mut vec![0; 300_000]).unwrap();
            drop((socket, peer));
            let thirty_seconds = Timespec {
                tv_sec: 30,
                tv_nsec: 0,
            };
            let ended = loop {
                match monitor.next_closed().unwrap() {
                    Some(ended) if ended.cookie == identity.cookie() => break ended,
                    _ => poll(
                        &mut [PollFd::new(&monitor.0, PollFlags::IN)],
                        Some(&thirty_seconds),
                    )
                    .unwrap(),
                };
            };
            let flow = ended.flow_info.unwrap();
            assert_eq!(
                (flow.bytes_sent, flow.lost_segments),
                (300_000, 0),
                "{flow:?}"
            );
            assert!(
                flow.delivery_rate > 0
                    && flow.cwnd_segments > 1
                    && flow.mss_bytes > 500
                    && flow.min_rtt.is_some(),
                "{flow:?}"
            );
        }
    }

    #[test]
    fn a_socket_is_open_until_its_last_descriptor_is_closed() {
        let diag = SockDiag::open().unwrap();
        for at in ["127.0.0.1:0", "[::1]:0"] {
            let server = TcpListener::bind(at).unwrap();
            let socket = TcpStream::connect(server.local_addr().unwrap()).unwrap();
            let peer = server.accept().unwrap();
            let (identity, twin) = (
                SocketIdentity::of(&socket).unwrap(),
                socket.try_clone().unwrap(),
            );
            assert!(diag.is_open(&identity).unwrap());
            drop(socket);
            assert!(diag.is_open(&identity).unwrap());
            drop((peer, twin));
            nearpath_testkit::eventually_blocking("the socket is closed", || {
                !diag.is_open(&identity).unwrap()
            });
        }
    }

    #[test]
    fn a_socket_that_waits_for_late_packets_is_closed() {
        let diag = SockDiag::open().unwrap();
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(server.local_addr().unwrap()).unwrap();
        let peer = server.accept().unwrap();
        let identity = SocketIdentity::of(&socket).unwrap();
        socket.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(diag.is_open(&identity).unwrap(), "it may still read");
        // The side that closes first waits.
        drop(socket);
        let is_closed = || !diag.is_open(&identity).unwrap();
        nearpath_testkit::eventually_blocking("its end is acknowledged", is_closed);
        drop(peer);
        assert!(is_closed());
    }

    #[test]
    fn a_mapped_socket_is_found() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = server.local_addr().unwrap().port();
        let mapped =
            TcpStream::connect(("::ffff:127.0.0.1".parse::<IpAddr>().unwrap(), port)).unwrap();
        assert!(
            SockDiag::open()
                .unwrap()
                .is_open(&SocketIdentity::of(&mapped).unwrap())
                .unwrap()
        );
    }
}
