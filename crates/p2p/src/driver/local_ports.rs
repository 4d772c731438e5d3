//! Local ports for connections to peers: one per address family and transport.

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

/// Idle time before the kernel probes the peer. Cloud NATs drop idle mappings after minutes.
const KEEPALIVE_IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// Interval between keepalive probes.
const KEEPALIVE_PROBE_INTERVAL: Duration = Duration::from_secs(5);
/// Number of unanswered probes after which the kernel breaks the connection.
const MAX_KEEPALIVE_PROBES: u32 = 4;

/// Bound sockets that are not used yet.
#[derive(Debug)]
pub struct LocalPorts {
    /// UDP sockets with their bound addresses.
    pub(super) udp: Vec<(SocketAddr, UdpSocket)>,
    /// TCP sockets that reserve a port each. The port's listener and all dials share it.
    pub(super) tcp: Vec<(SocketAddr, OwnedFd)>,
}

impl LocalPorts {
    /// Binds a port of the kernel's choice per family and transport.
    ///
    /// Skips IPv6 on a machine without a global IPv6 address.
    ///
    /// # Errors
    /// Fails when no family works, or the process has too many open files.
    pub fn bind(transports: &[Transport]) -> io::Result<Self> {
        let mut ports = Self {
            udp: Vec::new(),
            tcp: Vec::new(),
        };
        let mut last_error = None;
        let has_v6 = super::host_addresses::list_addresses(false)
            .iter()
            .any(IpAddr::is_ipv6);
        let v6 = has_v6.then_some(IpAddr::V6(Ipv6Addr::UNSPECIFIED));
        for ip in [IpAddr::V4(Ipv4Addr::UNSPECIFIED)].into_iter().chain(v6) {
            // One family is enough: a machine may lack IPv6.
            last_error = transports
                .iter()
                .try_for_each(|transport| ports.bind_port(ip, *transport))
                .err()
                .or(last_error);
        }
        let is_empty = ports.is_empty();
        last_error.filter(|_| is_empty).map_or(Ok(ports), Err)
    }

    fn bind_port(&mut self, ip: IpAddr, transport: Transport) -> io::Result<()> {
        let addr = SocketAddr::new(ip, 0);
        match transport {
            Transport::Udp => open_bound(addr, SocketType::DGRAM)
                .map(|(socket, bound)| self.udp.push((bound, socket.into()))),
            Transport::Tcp => open_bound(addr, SocketType::STREAM)
                .map(|(socket, bound)| self.tcp.push((bound, socket))),
        }
    }

    /// Returns whether there are no ports.
    pub(super) fn is_empty(&self) -> bool {
        self.udp.is_empty() && self.tcp.is_empty()
    }

    /// Returns the bound addresses, UDP first.
    pub fn bound_addrs(&self) -> impl Iterator<Item = SocketAddr> {
        self.udp
            .iter()
            .map(|(bound, _)| *bound)
            .chain(self.tcp.iter().map(|(bound, _)| *bound))
    }
}

/// Opens a bound, non-blocking socket, and returns its address.
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
        // IPv4 has its own socket: a dual-stack one would report IPv4 peers as IPv6 addresses
        // (`::ffff:a.b.c.d`).
        set_ipv6_v6only(&socket, true)?;
    }
    if kind == SocketType::STREAM {
        // Set before `bind`: the kernel checks both options there.
        allow_port_sharing(&socket)?;
    }
    bind(&socket, &addr)?;
    let bound = SocketAddr::try_from(getsockname(&socket)?)?;
    Ok((socket, bound))
}

/// Allows listening and dialling from one port (socket(7)). All sockets of the port must set both
/// options.
fn allow_port_sharing(socket: &OwnedFd) -> io::Result<()> {
    set_socket_reuseaddr(socket, true)?;
    set_socket_reuseport(socket, true)?;
    Ok(())
}

/// Opens another TCP socket on the port. It closes with RST.
///
/// A graceful close would leave even a half-open handshake in `FIN-WAIT-1`. Until that ends, no
/// other dial between the two addresses is possible (decision 34).
pub(super) fn open_on_port(bound: SocketAddr) -> io::Result<TcpStream> {
    let (socket, _) = open_bound(bound, SocketType::STREAM)?;
    // Connections that a listener on this socket accepts inherit the option.
    set_socket_linger(&socket, Some(Duration::ZERO))?;
    Ok(socket.into())
}

/// Configures a connection to send small frames at once and to detect a dead peer.
pub(super) fn prepare_stream(stream: &tokio::net::TcpStream) -> io::Result<()> {
    set_tcp_nodelay(stream, true)?;
    set_socket_keepalive(stream, true)?;
    set_tcp_keepidle(stream, KEEPALIVE_IDLE_TIMEOUT)?;
    set_tcp_keepintvl(stream, KEEPALIVE_PROBE_INTERVAL)?;
    set_tcp_keepcnt(stream, MAX_KEEPALIVE_PROBES)?;
    Ok(())
}

/// Restores the graceful close of a selected connection, which sends all written bytes before its
/// end.
pub(super) fn restore_graceful_close(stream: &tokio::net::TcpStream) -> io::Result<()> {
    Ok(set_socket_linger(stream, None)?)
}
