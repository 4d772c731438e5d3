//! What the launcher and the template tell each other, over a socket: one message an order, one message an answer.
//!
//! Specs and descriptors travel in messages. Nothing is in arguments or environment, which other processes may read, and no
//! descriptor is inherited, so a fork elsewhere in the node cannot leak one.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::MemfdFlags;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};
use rustix::process::Pid;

use super::spec::{Isolation, Spec};

const MOST_FDS: usize = 10;
/// Bits of an order's octet: the child gets a PID namespace; it gets a socket for its listener; it gets one for its hatches.
const OWN_PIDS: u8 = 1;
const LISTENED: u8 = 2;
const HATCHED: u8 = 4;

/// One instance to be made, as the template gets it.
pub(super) struct Order {
    /// The spec as JSON, in memory; read by the child.
    spec: OwnedFd,
    /// Whether the child gets a PID namespace: known before it exists.
    pub(super) own_pids: bool,
    pub(super) streams: Streams<OwnedFd>,
    /// Where it is to send a listener for its connects, if it is to have one.
    pub(super) listener: Option<OwnedFd>,
    /// Where it is to send the node's sockets inside, if there are to be some.
    pub(super) hatches: Option<OwnedFd>,
    /// The switch's network namespace.
    pub(super) switch: Option<OwnedFd>,
    /// Where to ask whether the pair is guarded, when somebody guards it.
    pub(super) guard: Option<OwnedFd>,
}

/// The child's ends of its pipes.
pub(super) struct Streams<F> {
    pub(super) stdout: F,
    pub(super) stderr: F,
    pub(super) notes: F,
    /// What it reads: who it is.
    pub(super) identity: F,
    /// Never written to: it is closed when the child has become the watchdog, or died.
    pub(super) gate: F,
}

/// Sends an order.
pub(super) fn send(
    socket: BorrowedFd<'_>,
    spec: &Spec,
    streams: &Streams<OwnedFd>,
    [listener, hatches, guard]: [Option<&OwnedFd>; 3],
) -> io::Result<()> {
    let text = memfd("spec", &serde_json::to_vec(spec)?)?;
    let Streams { stdout, stderr, notes, identity, gate } = streams;
    let mut fds = [&text, stdout, stderr, notes, identity, gate].map(AsFd::as_fd).to_vec();
    fds.extend(listener.map(AsFd::as_fd));
    fds.extend(hatches.map(AsFd::as_fd));
    fds.extend(spec.network.as_ref().and_then(|network| network.switch.as_deref()).map(AsFd::as_fd));
    fds.extend(guard.map(AsFd::as_fd));
    let bit = |set, bit| if set { bit } else { 0 };
    let own_pids = bit(spec.isolation != Isolation::None, OWN_PIDS);
    put(socket, &[own_pids | bit(listener.is_some(), LISTENED) | bit(hatches.is_some(), HATCHED)], &fds)
}

/// Waits for an order; `None` when the launcher is gone.
pub(super) fn receive(socket: BorrowedFd<'_>) -> io::Result<Option<Order>> {
    let mut bits = [0];
    let (length, fds) = take(socket, &mut bits)?;
    if length == 0 {
        return Ok(None);
    }
    let mut fds = fds.into_iter();
    let mut next =
        || fds.next().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "an order lacks a descriptor"));
    let spec = next()?;
    let streams = Streams { stdout: next()?, stderr: next()?, notes: next()?, identity: next()?, gate: next()? };
    let listener = if bits[0] & LISTENED == 0 { None } else { Some(next()?) };
    let hatches = if bits[0] & HATCHED == 0 { None } else { Some(next()?) };
    let (switch, guard) = (fds.next(), fds.next());
    Ok(Some(Order { spec, own_pids: bits[0] & OWN_PIDS != 0, streams, listener, hatches, switch, guard }))
}

impl Order {
    /// Reads the spec.
    pub(super) fn spec(&self) -> io::Result<Spec> {
        Ok(serde_json::from_slice(&content(self.spec.as_fd())?)?)
    }
}

/// Answers an order: the child's pid and pidfd, or why there is none.
pub(super) fn answer(socket: BorrowedFd<'_>, child: io::Result<(Pid, OwnedFd)>) -> io::Result<()> {
    match child {
        Ok((pid, pidfd)) => put(socket, &pid.as_raw_nonzero().get().to_ne_bytes(), &[pidfd.as_fd()]),
        Err(error) => put(socket, &(-error.raw_os_error().unwrap_or(libc::EIO)).to_ne_bytes(), &[]),
    }
}

/// Waits for the answer.
pub(super) fn answered(socket: BorrowedFd<'_>) -> io::Result<(u32, OwnedFd)> {
    let gone = || io::Error::new(io::ErrorKind::BrokenPipe, "the template of instances has ended");
    let mut number = [0; 4];
    let (length, fds) = take(socket, &mut number)?;
    match (length, u32::try_from(i32::from_ne_bytes(number)), fds.into_iter().next()) {
        (0, ..) => Err(gone()),
        (_, Ok(pid), Some(pidfd)) => Ok((pid, pidfd)),
        _ => Err(io::Error::from_raw_os_error(i32::from_ne_bytes(number).wrapping_neg())),
    }
}

/// Sends a message of bytes and descriptors.
pub(crate) fn put(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(fds));
    }
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives a message: how many bytes there were, 0 at the end, and its descriptors.
pub(crate) fn take(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let message = rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut ancillary, flags)
    })?;
    let mut fds = Vec::new();
    for part in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = part {
            fds.extend(rights);
        }
    }
    Ok((message.bytes, fds))
}

/// An anonymous file that holds `bytes`.
pub(super) fn memfd(name: &str, bytes: &[u8]) -> io::Result<OwnedFd> {
    let mut file = File::from(rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC)?);
    file.write_all(bytes)?;
    Ok(file.into())
}

/// All bytes of such a file.
pub(super) fn content(fd: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    let length = usize::try_from(rustix::fs::fstat(fd)?.st_size).map_err(io::Error::other)?;
    let mut bytes = vec![0; length];
    let read = rustix::io::pread(fd, &mut bytes[..], 0)?;
    if read == length { Ok(bytes) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}
