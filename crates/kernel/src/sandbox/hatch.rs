//! Hatches: sockets of the node's in an instance's own network, made before anything of the instance runs.
//!
//! The node's network speaks IPv4. What a function declared by an IPv6 address it has to reach by that address; so the address is its own namespace's,
//! and the node listens there. The same way the node answers what names mean. Who calls is known by the socket, which no other instance reaches; nothing
//! of it passes the switch.

use std::io;
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt};
use serde::{Deserialize, Serialize};

use super::orders::{put, take};
use crate::netlink::Rtnl;
use crate::sockets::raw;
use crate::switch::write_settings;

/// Connections that may wait to be accepted at one hatch.
const BACKLOG: i32 = 1_024;
/// Longest text of an error.
const TEXT: usize = 256;
/// Of `linux/in6.h`; libc has no name for it everywhere.
const IPV6_FREEBIND: i32 = 78;
/// IPv6 on loopback alone: no device has an address from which anything could come or go.
const SETTINGS: &[(&str, &str)] = &[("ipv6/conf/lo/disable_ipv6", "0")];

/// Where the node has a socket inside an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Hatch {
    /// Takes connections to an address that from now on is the instance's own.
    Connections(SocketAddrV6),
    /// Takes datagrams at an address of its loopback.
    Datagrams(SocketAddrV4),
}

/// A hatch by its number in the spec, and its socket, not blocking, or why there is none.
pub type Opened = (usize, io::Result<OwnedFd>);

/// Opens all in the calling thread's namespace, whose `lo` is up, and sends each away. One that cannot be opened is told, and no reason to stop.
///
/// # Errors
/// When nobody takes them.
pub(super) fn open(hatches: &[Hatch], to: impl AsFd) -> io::Result<()> {
    if hatches.iter().any(|hatch| matches!(hatch, Hatch::Connections(_))) {
        write_settings(SETTINGS)?;
    }
    for (number, hatch) in hatches.iter().enumerate() {
        let number = (number as u32).to_ne_bytes();
        match one(hatch) {
            Ok(socket) => put(to.as_fd(), &number, &[socket.as_fd()])?,
            Err(why) => put(to.as_fd(), &[&number, why.to_string().as_bytes()].concat(), &[])?,
        }
    }
    Ok(())
}

/// Receives the next one that [`open`] sent; `None`: that was all. Blocks until then, unless the socket does not.
///
/// # Errors
/// When the socket fails, or would block.
pub fn receive(socket: impl AsFd) -> io::Result<Option<Opened>> {
    let mut text = [0; TEXT];
    let (length, fds) = take(socket.as_fd(), &mut text)?;
    let Some((number, why)) = text[..length].split_first_chunk() else { return Ok(None) };
    let opened = fds.into_iter().next();
    let opened = opened.ok_or_else(|| io::Error::other(String::from_utf8_lossy(why).into_owned()));
    Ok(Some((u32::from_ne_bytes(*number) as usize, opened)))
}

fn one(hatch: &Hatch) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    match *hatch {
        Hatch::Connections(at) => {
            Rtnl::open()?.answer_for_v6(*at.ip())?;
            let socket = socket_with(AddressFamily::INET6, SocketType::STREAM, flags, None)?;
            sockopt::set_ipv6_v6only(&socket, true)?;
            raw::set(&socket, libc::IPPROTO_IPV6, IPV6_FREEBIND, &1_i32.to_ne_bytes())?; // a route makes it local, no device has it
            bind(&socket, &at)?;
            listen(&socket, BACKLOG)?;
            Ok(socket)
        }
        Hatch::Datagrams(at) => {
            let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)?;
            bind(&socket, &at)?;
            Ok(socket)
        }
    }
}

impl Hatch {
    /// One for connections to an address.
    pub fn connections(address: Ipv6Addr, port: u16) -> Self {
        Self::Connections(SocketAddrV6::new(address, port, 0, 0))
    }

    /// Where it is.
    pub fn address(&self) -> SocketAddr {
        match *self {
            Self::Connections(at) => at.into(),
            Self::Datagrams(at) => at.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::namespace;
    use crate::sandbox::network::loopback;
    use rustix::net::socketpair;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream, UdpSocket};

    #[test]
    fn what_is_sent_there_arrives_and_what_cannot_be_is_told() {
        nearpath_testkit::need_root!();
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let address: Ipv6Addr = "2001:db8::7".parse().unwrap();
        let names = SocketAddrV4::new([127, 0, 0, 53].into(), 53);
        let hatches = [Hatch::connections(address, 443), Hatch::Datagrams(names), Hatch::connections(address, 443)];
        let inside = namespace::create(|| {
            write_settings(&[("ipv6/conf/all/disable_ipv6", "1"), ("ipv6/conf/default/disable_ipv6", "1")])?;
            loopback()?;
            open(&hatches, theirs)
        });
        let inside = inside.unwrap();
        let opened: Vec<Opened> = std::iter::from_fn(|| receive(&ours).unwrap()).collect();
        let mut opened = opened.into_iter();
        let [connections, datagrams, twice] = std::array::from_fn(|_| opened.next().unwrap());
        assert_eq!((connections.0, datagrams.0, twice.0), (0, 1, 2));
        assert!(twice.1.unwrap_err().to_string().contains("in use"));
        let (listener, socket) = (TcpListener::from(connections.1.unwrap()), UdpSocket::from(datagrams.1.unwrap()));
        let said = namespace::within(inside, || {
            let mut client = TcpStream::connect((address, 443))?;
            let asks = UdpSocket::bind("127.0.0.1:0")?;
            asks.send_to(b"who?", names)?;
            listener.accept()?.0.write_all(b"hello")?;
            let mut said = [0; 5];
            client.read_exact(&mut said)?;
            assert!(TcpStream::connect(("2001:db8::8".parse::<Ipv6Addr>().unwrap(), 443)).is_err());
            Ok(said)
        });
        assert_eq!(&said.unwrap(), b"hello");
        let mut asked = [0; 9];
        assert_eq!(socket.recv(&mut asked).unwrap(), 4);
    }
}
