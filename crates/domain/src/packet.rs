//! Packets with file descriptors over a SOCK_SEQPACKET socket.
//!
//! Received descriptors are owned at once: dropping the packet closes unused ones. All are
//! close-on-exec.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg,
    sendmsg, socketpair,
};
use serde::Serialize;

use crate::protocol::MAX_PACKET_BYTES;

/// Maximum number of descriptors per packet.
pub const MAX_DESCRIPTORS: usize = 4;
/// Room for one descriptor more than allowed, so that an excess is detected instead of truncated.
const CONTROL_BYTES: usize = rustix::cmsg_space!(ScmRights(5));

/// A received packet.
#[derive(Debug)]
pub struct SocketPacket {
    /// Bytes, at most [`MAX_PACKET_BYTES`].
    pub bytes: Vec<u8>,
    /// Descriptors, at most [`MAX_DESCRIPTORS`].
    pub descriptors: Vec<OwnedFd>,
}

/// Creates two connected non-blocking sockets.
pub fn socket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        flags,
        None,
    )?)
}

/// Encodes a message; fails when it exceeds a packet.
pub fn encode_message(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let bytes = serde_json::to_vec(message)?;
    if bytes.len() > MAX_PACKET_BYTES {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "the message is larger than a packet",
        ));
    }
    Ok(bytes)
}

/// Sends a message with its descriptors.
pub fn send_message(
    socket: impl AsFd,
    message: &impl Serialize,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    send_bytes(socket, &encode_message(message)?, descriptors)
}

/// Sends bytes with their descriptors, all or nothing.
pub fn send_bytes(
    socket: impl AsFd,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); CONTROL_BYTES];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "too many descriptors for a packet",
        ));
    }
    sendmsg(
        socket,
        &[IoSlice::new(bytes)],
        &mut control,
        // A closed peer is an error here, not a SIGPIPE for the process.
        SendFlags::NOSIGNAL,
    )?;
    Ok(())
}

/// Receives the next packet; none at end of file. Fails with `InvalidData` when the packet exceeds
/// a limit: the sender is faulty, and its descriptors are closed.
pub fn receive_packet(socket: impl AsFd) -> io::Result<Option<SocketPacket>> {
    let refused = |why: &str| Err(io::Error::new(io::ErrorKind::InvalidData, why));
    let mut bytes = vec![0; MAX_PACKET_BYTES];
    let mut space = [MaybeUninit::uninit(); CONTROL_BYTES];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    // Atomic: a fork in another thread must not inherit the descriptors.
    let flags = RecvFlags::CMSG_CLOEXEC;
    let got = match recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut bytes)],
        &mut control,
        flags,
    ) {
        // A peer that closed with unread data causes ECONNRESET instead of end of file.
        Err(rustix::io::Errno::CONNRESET) => return Ok(None),
        got => got?,
    };
    // Owned before any check: an early return closes them.
    let descriptors: Vec<OwnedFd> = control.drain().flat_map(scm_rights).collect();
    // End of file; SOCK_SEQPACKET has no other way to show it, and no message is empty.
    if got.bytes == 0 {
        return Ok(None);
    }
    if got
        .flags
        .intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC)
        || descriptors.len() > MAX_DESCRIPTORS
    {
        return refused("a packet with too many bytes or descriptors");
    }
    bytes.truncate(got.bytes);
    Ok(Some(SocketPacket { bytes, descriptors }))
}

fn scm_rights(message: RecvAncillaryMessage<'_>) -> Vec<OwnedFd> {
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
    fn bytes_and_descriptors_arrive_together() {
        let (a, b) = socket_pair().unwrap();
        let sent = [a.as_fd(), b.as_fd()];
        send_bytes(&a, b"two", &sent).unwrap();
        let packet = receive_packet(&b).unwrap().unwrap();
        assert_eq!(
            (packet.bytes.as_slice(), packet.descriptors.len()),
            (&b"two"[..], 2)
        );
        assert!(
            packet
                .descriptors
                .iter()
                .all(|fd| fcntl_getfd(fd).unwrap().contains(FdFlags::CLOEXEC))
        );
        assert_eq!(
            receive_packet(&b).unwrap_err().kind(),
            io::ErrorKind::WouldBlock
        );
        drop(a);
        drop(packet);
        assert!(receive_packet(&b).unwrap().is_none(), "end of file");
    }

    #[test]
    fn a_packet_over_its_limits_is_refused() {
        let (a, b) = socket_pair().unwrap();
        send_bytes(&a, &[b'x'; MAX_PACKET_BYTES + 1], &[]).unwrap();
        assert_eq!(
            receive_packet(&b).unwrap_err().kind(),
            io::ErrorKind::InvalidData
        );
        send_bytes(&a, b"five", &[a.as_fd(); 5]).unwrap();
        assert_eq!(
            receive_packet(&b).unwrap_err().kind(),
            io::ErrorKind::InvalidData
        );
        send_bytes(&a, b"fine", &[a.as_fd(); 4]).unwrap();
        assert_eq!(receive_packet(&b).unwrap().unwrap().descriptors.len(), 4);
    }
}
