//! One packet with its descriptors over a SOCK_SEQPACKET socket.
//!
//! Descriptors that came with a packet are owned from the first moment: whoever does not use them closes them by dropping
//! the packet. Nothing that comes in is passed on to a child process.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use serde::Serialize;

use crate::protocol::MAX_PACKET;

/// Most descriptors of a packet.
pub const MAX_DESCRIPTORS: usize = 4;
/// Room for one more than is allowed, so that too many are seen as such.
const SPACE: usize = rustix::cmsg_space!(ScmRights(5));

/// A packet as it came.
#[derive(Debug)]
pub struct Packet {
    /// Its bytes, at most [`MAX_PACKET`].
    pub bytes: Vec<u8>,
    /// Its descriptors, at most [`MAX_DESCRIPTORS`].
    pub descriptors: Vec<OwnedFd>,
}

/// Two connected sockets that do not block.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// The bytes of a message; an error when they are too many for a packet.
pub fn encode(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let bytes = serde_json::to_vec(message)?;
    if bytes.len() > MAX_PACKET {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the message is larger than a packet"));
    }
    Ok(bytes)
}

/// Sends a message with its descriptors.
pub fn send(socket: impl AsFd, message: &impl Serialize, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    send_bytes(socket, &encode(message)?, descriptors)
}

/// Sends bytes with their descriptors: all or nothing.
pub fn send_bytes(socket: impl AsFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); SPACE];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many descriptors for a packet"));
    }
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// The next packet; nothing at the end of file. `InvalidData` when it has too many bytes or descriptors: the sender is at
/// fault, and what it sent is closed.
pub fn receive(socket: impl AsFd) -> io::Result<Option<Packet>> {
    let refused = |why: &str| Err(io::Error::new(io::ErrorKind::InvalidData, why));
    let mut bytes = vec![0; MAX_PACKET];
    let mut space = [MaybeUninit::uninit(); SPACE];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let got = match recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags) {
        // Who hung up with something unread left this instead of an end of file.
        Err(rustix::io::Errno::CONNRESET) => return Ok(None),
        got => got?,
    };
    let descriptors: Vec<OwnedFd> = control.drain().flat_map(rights).collect();
    if got.bytes == 0 {
        return Ok(None);
    }
    if got.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) || descriptors.len() > MAX_DESCRIPTORS {
        return refused("a packet with too many bytes or descriptors");
    }
    bytes.truncate(got.bytes);
    Ok(Some(Packet { bytes, descriptors }))
}

fn rights(message: RecvAncillaryMessage<'_>) -> Vec<OwnedFd> {
    match message {
        RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::{FdFlags, fcntl_getfd};

    #[test]
    fn bytes_and_descriptors() {
        let (a, b) = pair().unwrap();
        let sent = [a.as_fd(), b.as_fd()];
        send_bytes(&a, b"two", &sent).unwrap();
        let packet = receive(&b).unwrap().unwrap();
        assert_eq!((packet.bytes.as_slice(), packet.descriptors.len()), (&b"two"[..], 2));
        assert!(packet.descriptors.iter().all(|fd| fcntl_getfd(fd).unwrap().contains(FdFlags::CLOEXEC)));
        assert_eq!(receive(&b).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(a);
        drop(packet);
        assert!(receive(&b).unwrap().is_none(), "end of file");
    }

    #[test]
    fn too_much_is_refused() {
        let (a, b) = pair().unwrap();
        send_bytes(&a, &[b'x'; MAX_PACKET + 1], &[]).unwrap();
        assert_eq!(receive(&b).unwrap_err().kind(), io::ErrorKind::InvalidData);
        send_bytes(&a, b"five", &[a.as_fd(); 5]).unwrap();
        assert_eq!(receive(&b).unwrap_err().kind(), io::ErrorKind::InvalidData);
        send_bytes(&a, b"fine", &[a.as_fd(); 4]).unwrap();
        assert_eq!(receive(&b).unwrap().unwrap().descriptors.len(), 4);
    }
}
