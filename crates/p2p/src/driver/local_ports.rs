//! The ports from which a worker speaks to its peers: one a family and transport.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::time::Duration;

use crate::punch::Transport;
use rustix::net::sockopt::{
    set_ipv6_v6only, set_socket_keepalive, set_socket_linger, set_socket_reuseaddr,
    set_socket_reuseport, set_tcp_keepcnt, set_tcp_keepidle, set_tcp_keepintvl, set_tcp_nodelay,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with};

/// How long a connection may be silent before the kernel asks whether the peer lives; NATs of clouds forget after minutes.
const KEEPALIVE_IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// Between two of these questions, and how many stay without an answer before the connection is broken.
const KEEPALIVE_PROBES: (Duration, u32) = (Duration::from_secs(5), 4);

/// Bound, and not used yet.
#[derive(Debug)]
pub struct LocalPorts {
    /// UDP sockets with what they are bound to.
    pub(super) udp: Vec<(SocketAddr, UdpSocket)>,
    /// TCP sockets that keep a port; listeners and dials share it.
    pub(super) tcp: Vec<(SocketAddr, OwnedFd)>,
}

impl LocalPorts {
    /// Binds a port of the kernel's choice for each family that the machine has, and each of these transports. A machine without
    /// an address of IPv6 that others could reach has none.
    ///
    /// # Errors
    /// When there is no family at all, or the process has too many files open.
    pub fn bind(transports: &[Transport]) -> io::Result<Self> {
        let mut ports = Self {
            udp: Vec::new(),
            tcp: Vec::new(),
        };
        let mut failed = None;
        let has_v6 = super::host_addresses::list_addresses(false)
            .iter()
            .any(IpAddr::is_ipv6);
        let v6 = has_v6.then_some(IpAddr::V6(Ipv6Addr::UNSPECIFIED));
        for ip in [IpAddr::V4(Ipv4Addr::UNSPECIFIED)].into_iter().chain(v6) {
            // Without IPv6, say, the other family is enough.
            failed = transports
                .iter()
                .try_for_each(|transport| ports.bind_port(ip, *transport))
                .err()
                .or(failed);
        }
        let none = ports.is_empty();
        failed.filter(|_| none).map_or(Ok(ports), Err)
    }

    fn bind_port(&mut self, ip: IpAddr, transport: Transport) -> io::Result<()> {
        let addr = SocketAddr::new(ip, 0);
        match transport {
            Transport::Udp => open_bound(addr, SocketType::DGRAM)
                .map(|(socket, base)| self.udp.push((base, socket.into()))),
            Transport::Tcp => open_bound(addr, SocketType::STREAM)
                .map(|(socket, base)| self.tcp.push((base, socket))),
        }
    }

    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.udp.is_empty() && self.tcp.is_empty()
    }

    /// What the sockets are bound to, for people.
    pub fn bound_addrs(&self) -> impl Iterator<Item = SocketAddr> {
        self.udp
            .iter()
            .map(|(base, _)| *base)
            .chain(self.tcp.iter().map(|(base, _)| *base))
    }
}

/// A non-blocking socket that is bound there, and where that is.
fn open_bound(addr: SocketAddr, kind: SocketType) -> io::Result<(OwnedFd, SocketAddr)> {
    let family = if addr.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let socket = socket_with(
        family,
        kind,
        SocketFlags::NONBLOCK | SocketFlags::CLOEXEC,
        None,
    )?;
    if addr.is_ipv6() {
        set_ipv6_v6only(&socket, true)?;
    }
    if kind == SocketType::STREAM {
        allow_port_sharing(&socket)?;
    }
    bind(&socket, &addr)?;
    let base = SocketAddr::try_from(getsockname(&socket)?)?;
    Ok((socket, base))
}

/// Listening and dialling from one port needs both (socket(7)); all sockets of the port must say so.
fn allow_port_sharing(socket: &OwnedFd) -> io::Result<()> {
    set_socket_reuseaddr(socket, true)?;
    set_socket_reuseport(socket, true)?;
    Ok(())
}

/// Another TCP socket on the port. What comes of it and is not kept leaves nothing behind: else the kernel ends in order
/// (`FIN-WAIT-1`) even a handshake that is half through, and until that is over no other dial can be between the two addresses.
pub(super) fn open_on_port(base: SocketAddr) -> io::Result<TcpStream> {
    let (socket, _) = open_bound(base, SocketType::STREAM)?;
    set_socket_linger(&socket, Some(Duration::ZERO))?; // accepted connections inherit it
    Ok(socket.into())
}

/// What a connection gets before it carries anything: small pieces go at once, and a peer that is gone is noticed.
pub(super) fn prepare_stream(stream: &tokio::net::TcpStream) -> io::Result<()> {
    set_tcp_nodelay(stream, true)?;
    set_socket_keepalive(stream, true)?;
    set_tcp_keepidle(stream, KEEPALIVE_IDLE_TIMEOUT)?;
    set_tcp_keepintvl(stream, KEEPALIVE_PROBES.0)?;
    set_tcp_keepcnt(stream, KEEPALIVE_PROBES.1)?;
    Ok(())
}

/// A connection that is kept: its end comes in order, after all that was written.
pub(super) fn restore_graceful_close(stream: &tokio::net::TcpStream) -> io::Result<()> {
    Ok(set_socket_linger(stream, None)?)
}
