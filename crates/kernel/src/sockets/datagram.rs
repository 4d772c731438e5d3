//! Datagrams with the address and port that their sender used (`ip(7)`).

use std::io::{self, IoSliceMut};
use std::net::SocketAddrV4;
use std::os::fd::{AsFd, AsRawFd};

use nix::cmsg_space;
use nix::libc::sockaddr_in;
use nix::sys::socket::{
    ControlMessageOwned, MsgFlags, RecvMsg, SockaddrIn, recvmsg, setsockopt, sockopt,
};

/// A datagram that was received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceivedDatagram {
    /// Octets of its content, which are the first of the buffer.
    pub len: usize,
    /// Address and port of the sender.
    pub source: SocketAddrV4,
    /// Address and port that it was sent to. A program may have given it to a socket that is bound to others.
    pub destination: SocketAddrV4,
}

/// Makes the kernel tell the destination of each datagram (`IP_RECVORIGDSTADDR`).
pub(crate) fn request_destinations(socket: impl AsFd) -> io::Result<()> {
    Ok(setsockopt(
        &socket.as_fd(),
        sockopt::Ipv4OrigDstAddr,
        &true,
    )?)
}

/// Receives a datagram of IPv4 from a socket of
/// [`AbsentSockets`](crate::bpf::AbsentSockets). 65,507 octets hold any.
///
/// # Errors
/// Fails with `WouldBlock` when there is none, and with `InvalidData` without its addresses.
pub fn receive_datagram(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<ReceivedDatagram> {
    let mut parts = [IoSliceMut::new(buffer)];
    let mut control = cmsg_space!(sockaddr_in);
    let socket = socket.as_fd().as_raw_fd();
    let received = recvmsg(socket, &mut parts, Some(&mut control), MsgFlags::empty())?;
    let source = received.address.map(SocketAddrV4::from);
    let addresses = source.zip(destination_of(&received)?);
    let (source, destination) = addresses.ok_or(io::ErrorKind::InvalidData)?;
    Ok(ReceivedDatagram {
        len: received.bytes,
        source,
        destination,
    })
}

fn destination_of(received: &RecvMsg<'_, '_, SockaddrIn>) -> io::Result<Option<SocketAddrV4>> {
    let mut messages = received.cmsgs()?;
    Ok(messages.find_map(|message| match message {
        ControlMessageOwned::Ipv4OrigDstAddr(address) => Some(SockaddrIn::from(address).into()),
        _ => None,
    }))
}
