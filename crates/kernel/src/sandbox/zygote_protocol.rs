//! The protocol between the launcher and the zygote: one message per request, and one per reply.
//!
//! Specs and descriptors travel in messages. Other processes can read arguments and environment, so
//! these stay empty. Descriptors are not inherited, so a concurrent fork in the node cannot leak
//! one.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::MemfdFlags;
use rustix::process::Pid;

pub(crate) use super::fd_messages::{receive_message, send_message};
use super::spec::{IsolationLevel, SandboxSpec};

/// Bits of a request's first octet. The child gets a PID namespace, and sockets over which it sends
/// its seccomp listener, the inner sockets, the gateway's listener.
const FLAG_PID_NAMESPACE: u8 = 1;
const FLAG_LISTENER: u8 = 2;
const FLAG_INNER_SOCKETS: u8 = 4;
const FLAG_GATEWAY_LISTENER: u8 = 8;

/// A request for one instance, as the zygote receives it.
pub(super) struct SpawnRequest {
    /// The spec as JSON in a memfd; the child reads it.
    spec_memfd: OwnedFd,
    /// Requests a PID namespace, which the fork must create.
    pub(super) pid_namespace: bool,
    pub(super) pipes: ChildPipes<OwnedFd>,
    /// Socket for the listener that reports connects, if wanted.
    pub(super) listener: Option<OwnedFd>,
    /// Socket for the node's inner sockets, if any.
    pub(super) inner_sockets: Option<OwnedFd>,
    /// Socket for the gateway's listener, if wanted.
    pub(super) gateway_listener: Option<OwnedFd>,
    /// The hub's network namespace.
    pub(super) hub: Option<OwnedFd>,
    /// Socket of the attach wait, if a forwarder is to be attached.
    pub(super) attach_wait: Option<OwnedFd>,
}

/// The child's ends of its pipes.
pub(super) struct ChildPipes<F> {
    pub(super) stdout: F,
    pub(super) stderr: F,
    pub(super) notes: F,
    /// Read by the watchdog: its identity.
    pub(super) identity: F,
    /// Never written to. It closes when the child becomes the watchdog, or dies.
    pub(super) started: F,
}

/// Sends a request.
pub(super) fn send_request(
    socket: BorrowedFd<'_>,
    spec: &SandboxSpec,
    streams: &ChildPipes<OwnedFd>,
    [listener, inner_sockets, gateway_listener, attach_wait]: [Option<&OwnedFd>; 4],
) -> io::Result<()> {
    // A memfd: a spec with secrets can exceed the size of a packet.
    let text = create_memfd("spec", &serde_json::to_vec(spec)?)?;
    let ChildPipes {
        stdout,
        stderr,
        notes,
        identity,
        started,
    } = streams;
    let mut fds = [&text, stdout, stderr, notes, identity, started]
        .map(AsFd::as_fd)
        .to_vec();
    fds.extend(listener.map(AsFd::as_fd));
    fds.extend(inner_sockets.map(AsFd::as_fd));
    fds.extend(gateway_listener.map(AsFd::as_fd));
    fds.extend(
        spec.network
            .as_ref()
            .and_then(|network| network.hub.as_deref())
            .map(AsFd::as_fd),
    );
    fds.extend(attach_wait.map(AsFd::as_fd));
    let bit = |set, bit| if set { bit } else { 0 };
    let own_pids = bit(spec.isolation != IsolationLevel::None, FLAG_PID_NAMESPACE);
    send_message(
        socket,
        &[own_pids
            | bit(listener.is_some(), FLAG_LISTENER)
            | bit(inner_sockets.is_some(), FLAG_INNER_SOCKETS)
            | bit(gateway_listener.is_some(), FLAG_GATEWAY_LISTENER)],
        &fds,
    )
}

/// Waits for a request; `None` when the launcher is gone.
pub(super) fn receive_request(socket: BorrowedFd<'_>) -> io::Result<Option<SpawnRequest>> {
    let mut bits = [0];
    let (length, fds) = receive_message(socket, &mut bits)?;
    if length == 0 {
        return Ok(None);
    }
    let mut fds = fds.into_iter();
    let mut next = || {
        fds.next().ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                "a spawn request lacks a descriptor",
            )
        })
    };
    let spec = next()?;
    let streams = ChildPipes {
        stdout: next()?,
        stderr: next()?,
        notes: next()?,
        identity: next()?,
        started: next()?,
    };
    // The order of descriptors is that of send_request.
    let mut next_if = |flag| (bits[0] & flag != 0).then(&mut next).transpose();
    let listener = next_if(FLAG_LISTENER)?;
    let inner_sockets = next_if(FLAG_INNER_SOCKETS)?;
    let gateway_listener = next_if(FLAG_GATEWAY_LISTENER)?;
    // No flags for the last two: an attach wait never comes without a hub.
    let (hub, attach_wait) = (fds.next(), fds.next());
    Ok(Some(SpawnRequest {
        spec_memfd: spec,
        pid_namespace: bits[0] & FLAG_PID_NAMESPACE != 0,
        pipes: streams,
        listener,
        inner_sockets,
        gateway_listener,
        hub,
        attach_wait,
    }))
}

impl SpawnRequest {
    /// Reads the spec.
    pub(super) fn read_spec(&self) -> io::Result<SandboxSpec> {
        Ok(serde_json::from_slice(&read_memfd(
            self.spec_memfd.as_fd(),
        )?)?)
    }
}

/// Replies to a request with the child's pid and pidfd, or an error.
pub(super) fn send_reply(
    socket: BorrowedFd<'_>,
    child: io::Result<(Pid, OwnedFd)>,
) -> io::Result<()> {
    match child {
        Ok((pid, pidfd)) => send_message(
            socket,
            &pid.as_raw_nonzero().get().to_ne_bytes(),
            &[pidfd.as_fd()],
        ),
        Err(error) => send_message(
            socket,
            // Negative: a pid is positive, so one number carries both outcomes.
            &(-error.raw_os_error().unwrap_or(libc::EIO)).to_ne_bytes(),
            &[],
        ),
    }
}

/// Waits for the reply.
pub(super) fn receive_reply(socket: BorrowedFd<'_>) -> io::Result<(u32, OwnedFd)> {
    let zygote_ended = || io::Error::new(io::ErrorKind::BrokenPipe, "the zygote has ended");
    let mut number = [0; 4];
    let (length, fds) = receive_message(socket, &mut number)?;
    match (
        length,
        u32::try_from(i32::from_ne_bytes(number)),
        fds.into_iter().next(),
    ) {
        (0, ..) => Err(zygote_ended()),
        (_, Ok(pid), Some(pidfd)) => Ok((pid, pidfd)),
        _ => Err(io::Error::from_raw_os_error(
            i32::from_ne_bytes(number).wrapping_neg(),
        )),
    }
}

/// Creates an anonymous file that holds `bytes`.
pub(super) fn create_memfd(name: &str, bytes: &[u8]) -> io::Result<OwnedFd> {
    let mut file = File::from(rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC)?);
    file.write_all(bytes)?;
    Ok(file.into())
}

/// Reads all bytes of such a file.
pub(super) fn read_memfd(fd: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    let length = usize::try_from(rustix::fs::fstat(fd)?.st_size).map_err(io::Error::other)?;
    let mut bytes = vec![0; length];
    let read = rustix::io::pread(fd, &mut bytes[..], 0)?;
    if read == length {
        Ok(bytes)
    } else {
        Err(io::ErrorKind::UnexpectedEof.into())
    }
}
