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
    /// Datagrams that this socket has lost before, since it was opened, because its queue was full. Wraps
    /// around.
    pub lost: u32,
}

/// Makes the kernel tell the destination of each datagram (`IP_RECVORIGDSTADDR`), and how many were lost
/// (`SO_RXQ_OVFL`).
pub(crate) fn request_details(socket: impl AsFd) -> io::Result<()> {
    let socket = socket.as_fd();
    setsockopt(&socket, sockopt::Ipv4OrigDstAddr, &true)?;
    Ok(setsockopt(&socket, sockopt::RxqOvfl, &1)?)
}

/// Receives a datagram of IPv4 from a socket of
/// [`AbsentSockets`](crate::bpf::AbsentSockets). 65,507 octets hold any.
///
/// # Errors
/// Fails with `WouldBlock` when there is none, and with `InvalidData` without its addresses.
pub fn receive_datagram(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<ReceivedDatagram> {
    let mut parts = [IoSliceMut::new(buffer)];
    // Both messages of `request_details`.
    let mut control = cmsg_space!(sockaddr_in, u32);
    let socket = socket.as_fd().as_raw_fd();
    let received = recvmsg(socket, &mut parts, Some(&mut control), MsgFlags::empty())?;
    let source = received.address.map(SocketAddrV4::from);
    let (destination, lost) = details_of(&received)?;
    let addresses = source.zip(destination);
    let (source, destination) = addresses.ok_or(io::ErrorKind::InvalidData)?;
    Ok(ReceivedDatagram {
        len: received.bytes,
        source,
        destination,
        lost,
    })
}

/// Returns the destination, and how many datagrams were lost.
fn details_of(received: &RecvMsg<'_, '_, SockaddrIn>) -> io::Result<(Option<SocketAddrV4>, u32)> {
    let (mut destination, mut lost) = (None, 0);
    for message in received.cmsgs()? {
        match message {
            ControlMessageOwned::Ipv4OrigDstAddr(address) => {
                destination = Some(SockaddrIn::from(address).into());
            }
            // The kernel leaves it out while none was lost.
            ControlMessageOwned::RxqOvfl(total) => lost = total,
            _ => {}
        }
    }
    Ok((destination, lost))
}
