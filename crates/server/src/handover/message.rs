//! Messages with descriptors over a SOCK_SEQPACKET socket between two processes of the same user.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Descriptors per packet; the kernel accepts 253 (`SCM_MAX_FD`).
const MAX_FDS: usize = 128;
/// Bytes per packet.
const MAX_BYTES: usize = 16 * 1024;

/// Sends a message; descriptors that do not fit follow in further packets.
pub(super) fn send(
    socket: impl AsFd,
    message: &impl Serialize,
    fds: &[BorrowedFd<'_>],
) -> io::Result<()> {
    // The number travels with the message: the receiver knows how many packets follow.
    let bytes = serde_json::to_vec(&(message, fds.len()))?;
    let (first, rest) = fds.split_at(fds.len().min(MAX_FDS));
    send_packet(&socket, &bytes, first)?;
    rest.chunks(MAX_FDS)
        // Not empty: a packet of 0 bytes would look like the end of the connection.
        .try_for_each(|more| send_packet(&socket, b"{}", more))
}

/// Receives the next message with all its descriptors.
pub(super) fn receive<T: DeserializeOwned>(socket: impl AsFd) -> io::Result<(T, Vec<OwnedFd>)> {
    let (bytes, mut fds) = receive_packet(&socket)?;
    let (message, wanted): (T, usize) = serde_json::from_slice(&bytes)?;
    while fds.len() < wanted {
        let (_, more) = receive_packet(&socket)?;
        if more.is_empty() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "handover message with missing descriptors",
            ));
        }
        fds.extend(more);
    }
    Ok((message, fds))
}

fn send_packet(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(fds));
    }
    rustix::io::retry_on_intr(|| {
        sendmsg(
            &socket,
            &[IoSlice::new(bytes)],
            &mut control,
            // The other process may have died: EPIPE is an error here, not SIGPIPE.
            SendFlags::NOSIGNAL,
        )
    })?;
    Ok(())
}

fn receive_packet(socket: impl AsFd) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let mut bytes = vec![0; MAX_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let into = &mut [IoSliceMut::new(&mut bytes)];
    let got = rustix::io::retry_on_intr(|| {
        // Close-on-exec from the start: the launcher may fork instances at any moment.
        recvmsg(&socket, into, &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    let fds: Vec<OwnedFd> = control.drain().flat_map(into_fds).collect();
    // The descriptors are owned by now: an early return closes them.
    if got.bytes == 0 {
        return Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            "the other process closed the connection",
        ));
    }
    if got
        .flags
        .intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC)
    {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "truncated message: the limit of open files is too low",
        ));
    }
    bytes.truncate(got.bytes);
    Ok((bytes, fds))
}

fn into_fds(message: RecvAncillaryMessage<'_>) -> Vec<OwnedFd> {
    match message {
        RecvAncillaryMessage::ScmRights(fds) => fds.collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap()
    }

    #[test]
    fn descriptors_beyond_one_packet_arrive() {
        let (one, other) = pair();
        for count in [0, 1, MAX_FDS, MAX_FDS + 1, 3 * MAX_FDS] {
            let fds = vec![one.as_fd(); count];
            send(&one, &"message", &fds).unwrap();
            let (message, got) = receive::<String>(&other).unwrap();
            assert_eq!((message.as_str(), got.len()), ("message", count));
        }
        drop(one);
        assert_eq!(
            receive::<String>(&other).unwrap_err().kind(),
            io::ErrorKind::UnexpectedEof
        );
    }

    #[test]
    fn malformed_messages_are_rejected() {
        for bytes in [
            &b"?"[..],
            b"{}",
            b"[1]",
            b"[\"Stay\",0]",
            b"[\"Offer\",-1]",
            b"[\"Offer\",1]",
        ] {
            let (one, other) = pair();
            send_packet(&one, bytes, &[]).unwrap();
            send_packet(&one, b"{}", &[]).unwrap(); // announced descriptors never come
            assert!(
                receive::<super::super::HandoverRequest>(&other).is_err(),
                "{bytes:?}"
            );
        }
    }
}
