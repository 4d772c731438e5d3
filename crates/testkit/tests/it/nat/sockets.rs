//! Sockets with timeouts, and TCP connections from shared ports.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use nearpath_testkit::lab::LabNode;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, connect, listen, socket_with, sockopt,
};

/// Time after which a waiting test fails.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

/// A UDP socket in a node. Port 0 is any.
pub(crate) fn udp(node: &LabNode, address: IpAddr, port: u16) -> UdpSocket {
    let socket = node.enter(|| UdpSocket::bind((address, port))).unwrap();
    socket.set_read_timeout(Some(DEADLINE)).unwrap();
    socket
}

/// Receives a datagram: its single octet, and its sender.
pub(crate) fn receive(socket: &UdpSocket) -> (u8, SocketAddr) {
    let mut octets = [0; 2];
    let (length, from) = socket
        .recv_from(&mut octets)
        .expect("a datagram within the deadline");
    assert_eq!(length, 1);
    (octets[0], from)
}

/// Receives datagrams up to the one with the octet `last`.
pub(crate) fn until(socket: &UdpSocket, last: u8) -> Vec<(u8, SocketAddr)> {
    let all = std::iter::repeat_with(|| receive(socket));
    all.take_while(|&(octet, _)| octet != last).collect()
}

pub(crate) fn send(socket: &UdpSocket, octet: u8, to: SocketAddr) {
    assert_eq!(socket.send_to(&[octet], to).unwrap(), 1);
}

/// A TCP socket at an address and port that it shares with others of the same machine.
fn shared(node: &LabNode, at: SocketAddr) -> OwnedFd {
    let family = if at.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = node
        .enter(|| socket_with(family, SocketType::STREAM, flags, None))
        .unwrap();
    sockopt::set_socket_reuseaddr(&socket, true).unwrap();
    sockopt::set_socket_reuseport(&socket, true).unwrap();
    bind(&socket, &at).unwrap();
    socket
}

/// A port of a machine that others can share, and a socket that holds it.
pub(crate) fn port(node: &LabNode, address: IpAddr) -> (SocketAddr, OwnedFd) {
    let holder = shared(node, (address, 0).into());
    let at = rustix::net::getsockname(&holder)
        .unwrap()
        .try_into()
        .unwrap();
    (at, holder)
}

/// Listens without blocking on accept. An address has one listener in a whole test. A closed one
/// may survive for a moment in a program that another test starts, and would take connections.
pub(crate) fn listener(node: &LabNode, at: SocketAddr) -> TcpListener {
    let socket = shared(node, at);
    listen(&socket, 16).unwrap();
    socket.into()
}

/// Waits for a connection.
pub(crate) fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    assert!(
        wait(listener, PollFlags::IN, DEADLINE),
        "no connection within the deadline"
    );
    let (stream, from) = listener.accept().unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    (stream, from)
}

/// A started TCP connection.
pub(crate) struct PendingDial(OwnedFd);

/// Sends the SYN. The connection ends with its socket by a RST, so that the next dial finds the
/// same ports free.
pub(crate) fn dial(node: &LabNode, from: SocketAddr, to: SocketAddr) -> PendingDial {
    let socket = shared(node, from);
    sockopt::set_socket_linger(&socket, Some(Duration::ZERO)).unwrap();
    assert_eq!(connect(&socket, &to), Err(Errno::INPROGRESS));
    PendingDial(socket)
}

impl PendingDial {
    /// Result of the dial; `None` while it is pending.
    pub(crate) fn now(&self) -> Option<Result<(), Errno>> {
        self.within_time(Duration::ZERO)
    }

    /// Waits for the result.
    pub(crate) fn ended(&self) -> Result<(), Errno> {
        self.within_time(DEADLINE)
            .expect("an answer within the deadline")
    }

    fn within_time(&self, time: Duration) -> Option<Result<(), Errno>> {
        wait(&self.0, PollFlags::OUT, time).then(|| sockopt::socket_error(&self.0).unwrap())
    }

    /// The connection, whose reads have a timeout.
    pub(crate) fn stream(self) -> TcpStream {
        self.ended().unwrap();
        let stream = TcpStream::from(self.0);
        stream.set_nonblocking(false).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream
    }
}

fn wait(what: impl AsFd, event: PollFlags, time: Duration) -> bool {
    let time = Timespec::try_from(time).unwrap();
    poll(&mut [PollFd::new(&what, event)], Some(&time)).unwrap() > 0
}

/// Sends an octet in each direction. Earlier packets on the same path have arrived then, and so
/// have their responses.
pub(crate) fn round_trip([near, far]: [&TcpStream; 2]) -> io::Result<()> {
    one_way(near, far)?;
    one_way(far, near)
}

fn one_way(mut from: &TcpStream, mut to: &TcpStream) -> io::Result<()> {
    from.write_all(b"b")?;
    to.read_exact(&mut [0])
}
