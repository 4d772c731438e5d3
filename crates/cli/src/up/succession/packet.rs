//! One message with its descriptors over a SOCK_SEQPACKET socket between two processes of the same user.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Most descriptors of a message; the kernel takes 253 (`SCM_MAX_FD`).
const FDS: usize = 128;
/// Most bytes of a message.
const BYTES: usize = 16 * 1024;

/// Sends a message; descriptors that do not fit go in further ones.
pub(super) fn send(socket: impl AsFd, message: &impl Serialize, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let bytes = serde_json::to_vec(&(message, fds.len()))?;
    let (first, rest) = fds.split_at(fds.len().min(FDS));
    put(&socket, &bytes, first)?;
    rest.chunks(FDS).try_for_each(|more| put(&socket, b"{}", more))
}

/// The next message with all its descriptors.
pub(super) fn receive<T: DeserializeOwned>(socket: impl AsFd) -> io::Result<(T, Vec<OwnedFd>)> {
    let (bytes, mut fds) = take(&socket)?;
    let (message, wanted): (T, usize) = serde_json::from_slice(&bytes)?;
    while fds.len() < wanted {
        let (_, more) = take(&socket)?;
        if more.is_empty() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a message without all its descriptors"));
        }
        fds.extend(more);
    }
    Ok((message, fds))
}

fn put(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(fds));
    }
    rustix::io::retry_on_intr(|| sendmsg(&socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL))?;
    Ok(())
}

fn take(socket: impl AsFd) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let mut bytes = vec![0; BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let into = &mut [IoSliceMut::new(&mut bytes)];
    let got = rustix::io::retry_on_intr(|| recvmsg(&socket, into, &mut control, RecvFlags::CMSG_CLOEXEC))?;
    let fds: Vec<OwnedFd> = control.drain().flat_map(rights).collect();
    if got.bytes == 0 {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the other process has hung up"));
    }
    if got.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "a message that was cut: too few descriptors are allowed",
        ));
    }
    bytes.truncate(got.bytes);
    Ok((bytes, fds))
}

fn rights(message: RecvAncillaryMessage<'_>) -> Vec<OwnedFd> {
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
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
    }

    #[test]
    fn more_descriptors_than_fit_in_one_message() {
        let (one, other) = pair();
        for count in [0, 1, FDS, FDS + 1, 3 * FDS] {
            let fds = vec![one.as_fd(); count];
            send(&one, &"message", &fds).unwrap();
            let (message, got) = receive::<String>(&other).unwrap();
            assert_eq!((message.as_str(), got.len()), ("message", count));
        }
        drop(one);
        assert_eq!(receive::<String>(&other).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn what_is_no_message_is_refused() {
        for bytes in [&b"?"[..], b"{}", b"[1]", b"[\"Stay\",0]", b"[\"Offer\",-1]", b"[\"Offer\",1]"] {
            let (one, other) = pair();
            put(&one, bytes, &[]).unwrap();
            put(&one, b"{}", &[]).unwrap(); // where one descriptor is announced, none
            assert!(receive::<super::super::Word>(&other).is_err(), "{bytes:?}");
        }
    }
}
