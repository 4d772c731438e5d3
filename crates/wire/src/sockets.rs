//! Listening sockets: opens a port once for each thread that will accept on it.

use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::sockopt::{
    set_ipv6_v6only, set_socket_reuseaddr, set_socket_reuseport, set_tcp_nodelay,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, getsockname, socket_with};

// The default of `somaxconn` since Linux 5.4; a lower setting of the administrator decides.
/// Connections that the kernel queues until they are accepted. The kernel caps it at
/// `net.core.somaxconn`.
const LISTEN_BACKLOG: i32 = 4096;

/// Opens `addr` with `n` TCP sockets, among which the kernel spreads new connections
/// (`SO_REUSEPORT`, socket(7)).
///
/// With port 0 the kernel chooses a port, the same for all sockets. The sockets are non-blocking.
/// Accepted connections inherit `TCP_NODELAY`, which saves a system call for each.
///
/// # Errors
/// When the address is not local, or another program uses or shares the port. The error's text
/// names the address.
pub fn bind_tcp(addr: SocketAddr, n: usize) -> io::Result<Vec<TcpListener>> {
    open_all(addr, n, open_listener).map_err(|error| listen_error(addr, "", error))
}

/// Opens `addr` with `n` UDP sockets, in the order in which the kernel numbers them.
///
/// # Errors
/// See [`bind_tcp`].
pub fn bind_udp(addr: SocketAddr, n: usize) -> io::Result<Vec<UdpSocket>> {
    open_all(addr, n, open_udp).map_err(|error| listen_error(addr, " (UDP)", error))
}

/// Opens `n` further UDP sockets on a port that processes of this user share already. The kernel
/// numbers them after the existing ones.
///
/// # Errors
/// When another user's process holds the port.
pub fn bind_more_udp(addr: SocketAddr, n: usize) -> io::Result<Vec<UdpSocket>> {
    let opened = (0..n)
        .map(|_| open_udp(addr, true))
        .collect::<io::Result<_>>();
    opened.map_err(|error| listen_error(addr, " (UDP)", error))
}

fn listen_error(addr: SocketAddr, kind: &str, error: io::Error) -> io::Error {
    let text = match error.kind() {
        io::ErrorKind::AddrInUse => format!("{addr}{kind} is in use by another program"),
        _ => format!("cannot listen on {addr}{kind}: {error}"),
    };
    io::Error::new(error.kind(), text)
}

fn open_all<S: AsFd>(
    addr: SocketAddr,
    n: usize,
    open: impl Fn(SocketAddr, bool) -> io::Result<S>,
) -> io::Result<Vec<S>> {
    if addr.port() != 0 {
        // with SO_REUSEPORT alone, another program on the port would go unnoticed
        drop(open(addr, false)?);
    }
    let first = open(addr, true)?;
    let chosen = SocketAddr::try_from(getsockname(&first)?)?;
    let others = (1..n).map(|_| open(chosen, true));
    std::iter::once(Ok(first)).chain(others).collect()
}

fn open_listener(addr: SocketAddr, shared: bool) -> io::Result<TcpListener> {
    let socket = new_socket(addr, SocketType::STREAM, shared)?;
    // Without it a restart fails while connections of the previous process are in TIME_WAIT.
    set_socket_reuseaddr(&socket, true)?;
    // Set on the listener: accepted sockets inherit it on Linux.
    set_tcp_nodelay(&socket, true)?;
    rustix::net::bind(&socket, &addr)?;
    if shared {
        rustix::net::listen(&socket, LISTEN_BACKLOG)?;
    }
    Ok(TcpListener::from(socket))
}

fn open_udp(addr: SocketAddr, shared: bool) -> io::Result<UdpSocket> {
    let socket = new_socket(addr, SocketType::DGRAM, shared)?;
    rustix::net::bind(&socket, &addr)?;
    Ok(UdpSocket::from(socket))
}

fn new_socket(addr: SocketAddr, kind: SocketType, shared: bool) -> io::Result<OwnedFd> {
    let family = if addr.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let socket = socket_with(
        family,
        kind,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )?;
    if addr.is_ipv6() {
        // The default depends on `net.ipv6.bindv6only`; an IPv6 wildcard must accept IPv4
        // everywhere.
        set_ipv6_v6only(&socket, false)?;
    }
    if shared {
        set_socket_reuseport(&socket, true)?;
    }
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn many_sockets_share_one_port() {
        let sockets = bind_tcp((Ipv4Addr::LOCALHOST, 0).into(), 3).unwrap();
        let ports: Vec<_> = sockets
            .iter()
            .map(|s| s.local_addr().unwrap().port())
            .collect();
        assert_eq!(ports, [ports[0]; 3]);
    }

    #[test]
    fn connections_inherit_nodelay() {
        let socket = bind_tcp((Ipv4Addr::LOCALHOST, 0).into(), 1)
            .unwrap()
            .remove(0);
        socket.set_nonblocking(false).unwrap();
        let _peer = std::net::TcpStream::connect(socket.local_addr().unwrap()).unwrap();
        assert!(socket.accept().unwrap().0.nodelay().unwrap());
    }

    #[test]
    fn datagram_ports_are_not_shared_with_other_programs() {
        let sockets = bind_udp((Ipv4Addr::LOCALHOST, 0).into(), 3).unwrap();
        let ports: Vec<_> = sockets
            .iter()
            .map(|s| s.local_addr().unwrap().port())
            .collect();
        assert_eq!(ports, [ports[0]; 3]);
        let error = bind_udp(sockets[0].local_addr().unwrap(), 1).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        assert!(error.to_string().contains("UDP"), "{error}");
    }

    #[test]
    fn a_port_in_use_is_named_even_when_it_could_be_shared() {
        let sockets = bind_tcp((Ipv4Addr::LOCALHOST, 0).into(), 1).unwrap();
        let addr = sockets[0].local_addr().unwrap();
        let error = bind_tcp(addr, 1).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        assert!(error.to_string().contains(&addr.to_string()), "{error}");
    }

    #[test]
    fn a_freed_port_can_be_opened_again() {
        let addr = bind_tcp((Ipv4Addr::LOCALHOST, 0).into(), 2).unwrap()[0]
            .local_addr()
            .unwrap();
        bind_tcp(addr, 2).unwrap();
    }
}
