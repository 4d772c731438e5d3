//! Opens a port once for each thread that will accept on it.

use std::io;
use std::net::{SocketAddr, TcpListener};

use rustix::net::sockopt::{set_ipv6_v6only, set_socket_reuseaddr, set_socket_reuseport, set_tcp_nodelay};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

/// Connections that the kernel keeps until they are accepted; it caps this at `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// Opens `addr` with `n` sockets among which the kernel spreads new connections (`SO_REUSEPORT`, socket(7)).
/// With port 0 the kernel chooses one, the same for all of them. The sockets are non-blocking. What they accept sends small
/// pieces at once: Linux lets connections inherit `TCP_NODELAY`, which saves a system call for each.
///
/// # Errors
/// When the address is not this machine's, or the port is in use, also by another program that shares it: the
/// error's text names the address.
pub fn bind(addr: SocketAddr, n: usize) -> io::Result<Vec<TcpListener>> {
    let named = |error: io::Error| match error.kind() {
        io::ErrorKind::AddrInUse => io::Error::new(error.kind(), format!("{addr} is in use by another program")),
        kind => io::Error::new(kind, format!("cannot listen on {addr}: {error}")),
    };
    if addr.port() != 0 {
        drop(open(addr, false).map_err(named)?); // sharing would hide another program on the port
    }
    let first = open(addr, true).map_err(named)?;
    let chosen = first.local_addr()?;
    let others = (1..n).map(|_| open(chosen, true));
    std::iter::once(Ok(first)).chain(others).collect::<io::Result<_>>().map_err(named)
}

fn open(addr: SocketAddr, shared: bool) -> io::Result<TcpListener> {
    let family = if addr.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    set_socket_reuseaddr(&socket, true)?;
    set_tcp_nodelay(&socket, true)?;
    if addr.is_ipv6() {
        set_ipv6_v6only(&socket, false)?;
    }
    if shared {
        set_socket_reuseport(&socket, true)?;
    }
    rustix::net::bind(&socket, &addr)?;
    if shared {
        rustix::net::listen(&socket, BACKLOG)?;
    }
    Ok(TcpListener::from(socket))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn one_port_many_sockets() {
        let sockets = bind((Ipv4Addr::LOCALHOST, 0).into(), 3).unwrap();
        let ports: Vec<_> = sockets.iter().map(|s| s.local_addr().unwrap().port()).collect();
        assert_eq!(ports, [ports[0]; 3]);
    }

    #[test]
    fn connections_inherit_nodelay() {
        let socket = bind((Ipv4Addr::LOCALHOST, 0).into(), 1).unwrap().remove(0);
        socket.set_nonblocking(false).unwrap();
        let _peer = std::net::TcpStream::connect(socket.local_addr().unwrap()).unwrap();
        assert!(socket.accept().unwrap().0.nodelay().unwrap());
    }

    #[test]
    fn a_port_in_use_is_named_even_when_it_could_be_shared() {
        let sockets = bind((Ipv4Addr::LOCALHOST, 0).into(), 1).unwrap();
        let addr = sockets[0].local_addr().unwrap();
        let error = bind(addr, 1).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        assert!(error.to_string().contains(&addr.to_string()), "{error}");
    }

    #[test]
    fn a_freed_port_can_be_opened_again() {
        let addr = bind((Ipv4Addr::LOCALHOST, 0).into(), 2).unwrap()[0].local_addr().unwrap();
        bind(addr, 2).unwrap();
    }
}
