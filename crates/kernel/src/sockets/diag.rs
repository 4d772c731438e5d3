//! Whether a socket that was given away is still open (`sock_diag(7)`): keeping a descriptor of it to watch would keep the connection, so the kernel is
//! asked ([`Diag`]), and tells ([`Ends`]).

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};

use netlink_sys::{Socket, protocols::NETLINK_SOCK_DIAG};

use super::flow::Flow;
use super::raw::get;

const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// Groups of `enum sknetlink_groups` (`linux/sock_diag.h`): IPv4's and IPv6's TCP sockets that end.
const ENDS: [u32; 2] = [1, 3];
/// Where the cookie is in a message about a socket: after `struct nlmsghdr`, in `struct inet_diag_msg`.
const COOKIE: std::ops::Range<usize> = 16 + 44..16 + 52;
/// Where attributes begin there: `struct inet_diag_msg` has 72 octets.
const ATTRIBUTES: usize = 16 + 72;
/// The attribute that holds `struct tcp_info` (`linux/inet_diag.h`).
const INET_DIAG_INFO: u16 = 2;
/// `struct nlmsghdr` and `struct inet_diag_req_v2`.
const LENGTH: u32 = 16 + 56;

/// Names a connected TCP socket of this namespace, also after it was given away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    family: u8,
    local: SocketAddr,
    peer: SocketAddr,
    cookie: u64,
}

impl Identity {
    /// That of a connected socket.
    ///
    /// # Errors
    /// When it is not connected over IP.
    pub fn of(socket: impl AsFd) -> io::Result<Self> {
        let (local, mut cookie) = (SocketAddr::try_from(rustix::net::getsockname(&socket)?)?, [0; 8]);
        let peer = rustix::net::getpeername(&socket)?.ok_or(io::ErrorKind::NotConnected)?;
        get(&socket, libc::SOL_SOCKET, libc::SO_COOKIE, &mut cookie)?;
        let family = if local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 } as u8;
        Ok(Self { family, local, peer: peer.try_into()?, cookie: u64::from_ne_bytes(cookie) })
    }

    /// What [`Ends`] tells of it.
    pub fn cookie(&self) -> u64 {
        self.cookie
    }

    /// A request for exactly this one.
    fn request(&self) -> Vec<u8> {
        let mut request = Vec::with_capacity(LENGTH as usize);
        request.extend(LENGTH.to_ne_bytes());
        request.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        request.extend((libc::NLM_F_REQUEST as u16).to_ne_bytes());
        request.extend([0; 8]); // sequence, port: the kernel answers whoever asked
        request.extend([self.family, libc::IPPROTO_TCP as u8, 0, 0]);
        request.extend(u32::MAX.to_ne_bytes()); // every state
        request.extend([self.local.port().to_be_bytes(), self.peer.port().to_be_bytes()].concat());
        request.extend([words(self.local.ip()), words(self.peer.ip())].concat());
        request.extend(0_u32.to_ne_bytes()); // any device
        request.extend((self.cookie as u32).to_ne_bytes());
        request.extend(((self.cookie >> 32) as u32).to_ne_bytes());
        request
    }
}

/// An address in the four words that both families have: IPv4's is the first.
fn words(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => (u128::from(v4.to_bits()) << 96).to_be_bytes(),
        IpAddr::V6(v6) => Ipv6Addr::octets(&v6),
    }
}

/// Where sockets of one network namespace are asked for.
pub struct Diag(Socket);

impl Diag {
    /// For the calling thread's namespace.
    ///
    /// # Errors
    /// When the process has too many files open, or the kernel has no `sock_diag`.
    pub fn open() -> io::Result<Self> {
        Socket::new(NETLINK_SOCK_DIAG).map(Self)
    }

    /// Whether the kernel still has a socket: whoever holds it, and until its peer has heard of its end. Does not wait: the kernel answers at once.
    ///
    /// # Errors
    /// When the kernel cannot say.
    pub fn is_open(&self, socket: &Identity) -> io::Result<bool> {
        const NLMSG_ERROR: u16 = 2;
        self.0.send(&socket.request(), 0)?;
        let mut answer = Vec::with_capacity(512);
        self.0.recv(&mut answer, libc::MSG_DONTWAIT)?;
        match answer.get(4..6).zip(answer.get(16..20)) {
            Some((kind, _)) if kind == SOCK_DIAG_BY_FAMILY.to_ne_bytes() => Ok(true),
            Some((kind, error)) if kind == NLMSG_ERROR.to_ne_bytes() => {
                let error = -i32::from_ne_bytes([error[0], error[1], error[2], error[3]]);
                match error {
                    libc::ENOENT | libc::ESTALE => Ok(false),
                    other => Err(io::Error::from_raw_os_error(other)),
                }
            }
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// Where the kernel tells of every TCP socket of one network namespace that it has freed. Does not block; readable when there is news.
pub struct Ends(Socket);

/// A socket that is no more.
#[derive(Debug, Clone, Copy)]
pub struct Ended {
    /// That of its [`Identity`].
    pub cookie: u64,
    /// What it showed of its path, as far as the kernel tells.
    pub flow: Option<Flow>,
}

impl Ended {
    fn read(news: &[u8]) -> Option<Self> {
        let cookie = u64::from_ne_bytes(news.get(COOKIE)?.try_into().ok()?);
        let flow = news.get(ATTRIBUTES..).and_then(|rest| attribute(rest, INET_DIAG_INFO)).and_then(Flow::read);
        Some(Self { cookie, flow })
    }
}

/// An attribute's content, of those that follow each other in `rest`.
fn attribute(mut rest: &[u8], kind: u16) -> Option<&[u8]> {
    loop {
        let (&[a, b, c, d], _) = rest.split_first_chunk::<4>()?;
        let (length, found) = (usize::from(u16::from_ne_bytes([a, b])), u16::from_ne_bytes([c, d]));
        if found == kind {
            return rest.get(4..length);
        }
        rest = rest.get(length.max(4).next_multiple_of(4)..)?;
    }
}

impl Ends {
    /// For the calling thread's namespace, from now on.
    ///
    /// # Errors
    /// As [`Diag::open`].
    pub fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_SOCK_DIAG)?;
        socket.bind_auto()?;
        for group in ENDS {
            socket.add_membership(group)?;
        }
        socket.set_non_blocking(true)?;
        Ok(Self(socket))
    }

    /// The next one that has ended; `None` when there is none at the moment.
    ///
    /// # Errors
    /// `ENOBUFS` when there were too many to tell them all: ask for each.
    pub fn next(&self) -> io::Result<Option<Ended>> {
        let mut news = Vec::with_capacity(1024);
        match self.0.recv(&mut news, 0) {
            Ok(_) => Ok(Some(Ended::read(&news).ok_or(io::ErrorKind::InvalidData)?)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl AsFd for Ends {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Ends {
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
    fn an_end_is_told() {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let ends = Ends::open().unwrap();
        for at in ["127.0.0.1:0", "[::1]:0"] {
            let server = TcpListener::bind(at).unwrap();
            let given = TcpStream::connect(server.local_addr().unwrap()).unwrap();
            let (peer, known) = (server.accept().unwrap(), Identity::of(&given).unwrap());
            (&given).write_all(&[7; 300_000]).unwrap();
            let (mut peer, _) = peer;
            peer.read_exact(&mut vec![0; 300_000]).unwrap();
            drop((given, peer));
            let half_a_minute = Timespec { tv_sec: 30, tv_nsec: 0 };
            let ended = loop {
                match ends.next().unwrap() {
                    Some(ended) if ended.cookie == known.cookie() => break ended,
                    _ => poll(&mut [PollFd::new(&ends.0, PollFlags::IN)], Some(&half_a_minute)).unwrap(),
                };
            };
            let flow = ended.flow.unwrap();
            assert_eq!((flow.sent, flow.lost), (300_000, 0), "{flow:?}");
            assert!(flow.rate > 0 && flow.window > 1 && flow.segment > 500 && flow.round_trip.is_some(), "{flow:?}");
        }
    }

    #[test]
    fn a_socket_is_open_until_its_last_descriptor_is_closed() {
        let diag = Diag::open().unwrap();
        for at in ["127.0.0.1:0", "[::1]:0"] {
            let server = TcpListener::bind(at).unwrap();
            let given = TcpStream::connect(server.local_addr().unwrap()).unwrap();
            let peer = server.accept().unwrap();
            let (known, twin) = (Identity::of(&given).unwrap(), given.try_clone().unwrap());
            assert!(diag.is_open(&known).unwrap());
            drop(given);
            assert!(diag.is_open(&known).unwrap());
            drop((peer, twin));
            let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
            while diag.is_open(&known).unwrap() {
                assert!(std::time::Instant::now() < deadline, "it never closed");
                std::thread::yield_now();
            }
        }
    }

    #[test]
    fn one_of_both_families_is_found() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = server.local_addr().unwrap().port();
        let mapped = TcpStream::connect(("::ffff:127.0.0.1".parse::<IpAddr>().unwrap(), port)).unwrap();
        assert!(Diag::open().unwrap().is_open(&Identity::of(&mapped).unwrap()).unwrap());
    }
}
