//! Sockets of the node inside an instance's own network, created before any code of the instance
//! runs.
//!
//! The node's network is IPv4 only. A destination declared by IPv6 address becomes a local address
//! of the instance's namespace, where the node listens. The node answers DNS queries the same way.
//! A socket identifies its instance, since no other one can reach it; its traffic never passes the
//! hub.

use std::io;
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt};
use serde::{Deserialize, Serialize};

use super::fd_messages::{receive_message, send_message};
use crate::hub_netns::write_sysctls;
use crate::netlink::RtnlSocket;
use crate::sockets::raw_options;

/// Maximum number of connections that wait for accept on one socket.
const MAX_BACKLOG: i32 = 1_024;
/// Maximum length of an error text in octets.
const MAX_ERROR_LEN: usize = 256;
/// Value of `linux/in6.h`; libc does not define it on all targets.
const IPV6_FREEBIND: i32 = 78;
/// Enables IPv6 on loopback only: no other device has an address to send from.
const IPV6_SYSCTLS: &[(&str, &str)] = &[("ipv6/conf/lo/disable_ipv6", "0")];

/// A socket of the node inside an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum InnerSocket {
    /// A listener at an address that becomes local to the instance.
    TcpV6(SocketAddrV6),
    /// A UDP socket at an address of its loopback.
    UdpV4(SocketAddrV4),
}

/// Index of the socket in the spec, and the non-blocking socket or an error.
pub type OpenedSocket = (usize, io::Result<OwnedFd>);

/// Opens all sockets in the calling thread's namespace, whose `lo` is up, and sends each to the
/// node. Failures are sent too and do not stop the others.
///
/// # Errors
/// Fails when the receiver is gone.
pub(super) fn open_all(sockets: &[InnerSocket], to: impl AsFd) -> io::Result<()> {
    if sockets
        .iter()
        .any(|inner_socket| matches!(inner_socket, InnerSocket::TcpV6(_)))
    {
        write_sysctls(IPV6_SYSCTLS)?;
    }
    for (index, inner_socket) in sockets.iter().enumerate() {
        send_opened(index as u32, open_one(inner_socket), &to)?;
    }
    Ok(())
}

/// Opens the gateway's listener in the calling thread's namespace, and sends it to the node.
///
/// The watchdog listens on the same port of all addresses. The kernel allows that only to sockets
/// of one user (`SO_REUSEPORT`, socket(7)), so the calling process has dropped its privileges.
///
/// # Errors
/// Fails when the address is taken, or the receiver is gone. The instance must not start then: the
/// watchdog would answer at the address, and the function would call itself.
pub(super) fn open_gateway_listener(addr: SocketAddrV4, to: impl AsFd) -> io::Result<()> {
    send_opened(0, Ok(listen_beside_watchdog(addr)?), to)
}

fn listen_beside_watchdog(addr: SocketAddrV4) -> io::Result<OwnedFd> {
    let socket = new_socket(AddressFamily::INET, SocketType::STREAM)?;
    sockopt::set_socket_reuseport(&socket, true)?;
    // Accepted connections inherit it (tcp(7)).
    sockopt::set_tcp_nodelay(&socket, true)?;
    bind(&socket, &addr)?;
    listen(&socket, MAX_BACKLOG)?;
    Ok(socket)
}

/// Sends a socket, or the reason for its absence.
fn send_opened(index: u32, opened: io::Result<OwnedFd>, to: impl AsFd) -> io::Result<()> {
    let index = index.to_ne_bytes();
    match opened {
        Ok(socket) => send_message(to.as_fd(), &index, &[socket.as_fd()]),
        Err(why) => send_message(
            to.as_fd(),
            &[&index, why.to_string().as_bytes()].concat(),
            &[],
        ),
    }
}

/// Receives the next socket that [`open_all`] sent; `None` after the last. Blocks, unless the
/// socket is non-blocking.
///
/// # Errors
/// Fails when the socket fails or would block.
pub fn receive_next(socket: impl AsFd) -> io::Result<Option<OpenedSocket>> {
    let mut text = [0; MAX_ERROR_LEN];
    let (length, fds) = receive_message(socket.as_fd(), &mut text)?;
    let Some((index, why)) = text[..length].split_first_chunk() else {
        return Ok(None);
    };
    let opened = fds.into_iter().next();
    let opened = opened.ok_or_else(|| io::Error::other(String::from_utf8_lossy(why).into_owned()));
    Ok(Some((u32::from_ne_bytes(*index) as usize, opened)))
}

fn new_socket(family: AddressFamily, kind: SocketType) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(family, kind, flags, None)?)
}

fn open_one(inner_socket: &InnerSocket) -> io::Result<OwnedFd> {
    match *inner_socket {
        InnerSocket::TcpV6(at) => {
            RtnlSocket::open()?.add_local_address_v6(*at.ip())?;
            let socket = new_socket(AddressFamily::INET6, SocketType::STREAM)?;
            sockopt::set_ipv6_v6only(&socket, true)?;
            // a route makes the address local, but no device has it
            raw_options::set_option(
                &socket,
                libc::IPPROTO_IPV6,
                IPV6_FREEBIND,
                &1_i32.to_ne_bytes(),
            )?;
            bind(&socket, &at)?;
            listen(&socket, MAX_BACKLOG)?;
            Ok(socket)
        }
        InnerSocket::UdpV4(at) => {
            let socket = new_socket(AddressFamily::INET, SocketType::DGRAM)?;
            bind(&socket, &at)?;
            Ok(socket)
        }
    }
}

impl InnerSocket {
    /// Returns a listener at an address.
    pub fn tcp(address: Ipv6Addr, port: u16) -> Self {
        Self::TcpV6(SocketAddrV6::new(address, port, 0, 0))
    }

    /// Returns the socket's address.
    pub fn address(&self) -> SocketAddr {
        match *self {
            Self::TcpV6(at) => at.into(),
            Self::UdpV4(at) => at.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::namespace;
    use crate::sandbox::network::set_up_loopback;
    use rustix::net::socketpair;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream, UdpSocket};

    #[test]
    fn opened_sockets_receive_traffic_and_failures_are_reported() {
        nearpath_testkit::need_root!();
        let (ours, theirs) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        let address: Ipv6Addr = "2001:db8::7".parse().unwrap();
        let names = SocketAddrV4::new([127, 0, 0, 53].into(), 53);
        let sockets = [
            InnerSocket::tcp(address, 443),
            InnerSocket::UdpV4(names),
            InnerSocket::tcp(address, 443),
        ];
        let inside = namespace::create_netns(|| {
            write_sysctls(&[
                ("ipv6/conf/all/disable_ipv6", "1"),
                ("ipv6/conf/default/disable_ipv6", "1"),
            ])?;
            set_up_loopback()?;
            open_all(&sockets, theirs)
        });
        let inside = inside.unwrap();
        let opened: Vec<OpenedSocket> =
            std::iter::from_fn(|| receive_next(&ours).unwrap()).collect();
        let mut opened = opened.into_iter();
        let [connections, datagrams, twice] = std::array::from_fn(|_| opened.next().unwrap());
        assert_eq!((connections.0, datagrams.0, twice.0), (0, 1, 2));
        assert!(twice.1.unwrap_err().to_string().contains("in use"));
        let (listener, socket) = (
            TcpListener::from(connections.1.unwrap()),
            UdpSocket::from(datagrams.1.unwrap()),
        );
        let greeting = namespace::run_in_netns(inside, || {
            let mut client = TcpStream::connect((address, 443))?;
            let client_datagrams = UdpSocket::bind("127.0.0.1:0")?;
            client_datagrams.send_to(b"who?", names)?;
            listener.accept()?.0.write_all(b"hello")?;
            let mut greeting = [0; 5];
            client.read_exact(&mut greeting)?;
            assert!(TcpStream::connect(("2001:db8::8".parse::<Ipv6Addr>().unwrap(), 443)).is_err());
            Ok(greeting)
        });
        assert_eq!(&greeting.unwrap(), b"hello");
        let mut query = [0; 9];
        assert_eq!(socket.recv(&mut query).unwrap(), 4);
    }
}
